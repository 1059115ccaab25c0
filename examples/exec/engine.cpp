// An engine for `refsd conform exec:./engine`, in one file and nothing but the standard library:
//     c++ -O2 -std=c++17 -o engine engine.cpp
// The protocol: refsd/engines/exec/protocol.md.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

// JSON, as much as requests and safetensors headers need.

struct Json {
    std::string text;  // a string's characters; a number's or a word's (true, false, null)
    std::map<std::string, Json> fields;
    std::vector<Json> items;

    const Json& operator[](const std::string& key) const { return fields.at(key); }
    double number() const { return std::stod(text); }
};

static Json parse(std::istream& in) {
    Json value;
    char c;
    in >> c;
    if (c == '{' || c == '[') {
        const char end = c == '{' ? '}' : ']';
        while (in >> c && c != end) {
            if (c == ',') continue;
            in.putback(c);
            if (end == ']') { value.items.push_back(parse(in)); continue; }
            const std::string key = parse(in).text;
            in >> c;  // ':'
            value.fields[key] = parse(in);
        }
    } else if (c == '"') {
        while (in.get(c) && c != '"') {
            if (c == '\\') in.get(c);  // names and paths here have no other escapes
            value.text += c;
        }
    } else {
        for (in.putback(c); in.get(c) && !std::strchr(",]} \n", c);) value.text += c;
        in.putback(c);
    }
    return value;
}

// safetensors: 8 bytes of header length, a JSON header, the tensors' bytes. This engine takes F32 alone.

struct Tensor {
    std::vector<size_t> shape;
    std::vector<float> data;
};
using Tensors = std::map<std::string, Tensor>;

static Tensors load(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    uint64_t length;
    std::memcpy(&length, bytes.data(), 8);
    std::istringstream header(std::string(bytes.data() + 8, length));
    Tensors tensors;
    for (const auto& [name, entry] : parse(header).fields) {
        if (name == "__metadata__") continue;
        if (entry["dtype"].text != "F32") throw std::runtime_error(name + " is no F32");
        Tensor& t = tensors[name];
        for (const Json& n : entry["shape"].items) t.shape.push_back(size_t(n.number()));
        const size_t begin = size_t(entry["data_offsets"].items[0].number());
        const size_t end = size_t(entry["data_offsets"].items[1].number());
        t.data.resize((end - begin) / 4);
        std::memcpy(t.data.data(), bytes.data() + 8 + length + begin, end - begin);
    }
    return tensors;
}

static void save(const std::string& path, const Tensor& y) {
    std::string header = "{\"y\":{\"dtype\":\"F32\",\"shape\":[";
    for (size_t i = 0; i < y.shape.size(); i++) header += (i ? "," : "") + std::to_string(y.shape[i]);
    header += "],\"data_offsets\":[0," + std::to_string(4 * y.data.size()) + "]}}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t length = header.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), 8);
    file << header;
    file.write(reinterpret_cast<const char*>(y.data.data()), std::streamsize(4 * y.data.size()));
}

// The engine itself.

static Tensor linear(const Tensors& in, const Json&) {
    const Tensor &x = in.at("x"), &weight = in.at("weight");
    const size_t O = weight.shape[0], K = weight.shape[1], rows = x.data.size() / K;
    Tensor y{x.shape, std::vector<float>(rows * O)};
    y.shape.back() = O;
    for (size_t r = 0; r < rows; r++)
        for (size_t o = 0; o < O; o++) {
            float sum = 0;
            for (size_t k = 0; k < K; k++) sum += x.data[r * K + k] * weight.data[o * K + k];
            y.data[r * O + o] = sum + (in.count("bias") ? in.at("bias").data[o] : 0.0f);
        }
    return y;
}

static Tensor rms_norm(const Tensors& in, const Json& params) {
    Tensor y = in.at("x");
    const size_t D = y.shape.back();
    const std::vector<float> weight = in.count("weight") ? in.at("weight").data : std::vector<float>(D, 1);
    for (size_t row = 0; row < y.data.size(); row += D) {
        float squares = 0;
        for (size_t d = 0; d < D; d++) squares += y.data[row + d] * y.data[row + d];
        const float scale = 1 / std::sqrt(squares / D + float(params["eps"].number()));
        for (size_t d = 0; d < D; d++) y.data[row + d] *= scale * weight[d];
    }
    return y;
}

static Tensor silu(const Tensors& in, const Json&) {
    Tensor y = in.at("x");
    for (float& v : y.data) v /= 1 + std::exp(-v);
    return y;
}

int main() try {
    const std::map<std::string, std::function<Tensor(const Tensors&, const Json&)>> ops = {
        {"linear", linear}, {"rms_norm", rms_norm}, {"silu", silu}};
    const Json request = parse(std::cin);
    if (request["request"].text == "describe") {
        std::ofstream file(request["output"].text);
        file << R"({"protocol": 1, "name": "cpp-example", "version": "1.0", "numerics": "float32", "ops": {)";
        const char* comma = "";
        for (const auto& op : ops) {
            file << comma << '"' << op.first << R"(": {"types": ["f32"]})";
            comma = ", ";
        }
        file << "}}";
        return 0;
    }
    save(request["output"].text, ops.at(request["op"].text)(load(request["inputs"].text), request["params"]));
    return 0;
} catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
}
