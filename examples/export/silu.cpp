// Answer a case that `refsd export 'silu/f32/bend*' -o cases --format bin` wrote, and leave y.npy for `refsd compare`.
//
//     c++ -O2 -std=c++17 -o silu examples/export/silu.cpp
//     ./silu cases/silu/f32/bend-x33x77 33 77
//     refsd compare y.npy silu/f32/bend-x33x77
#include <cmath>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

template <class T>  // float for .f32.bin, double for .f64.bin, unsigned char for blocks
std::vector<T> read(const std::string& path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) throw std::runtime_error("cannot read " + path);
    std::vector<T> values(static_cast<size_t>(file.tellg()) / sizeof(T));
    file.seekg(0);
    file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
    return values;
}

// npy: a magic number, the header's length, a Python dictionary padded to 64 bytes, the numbers.
void write_npy(const std::string& path, const std::vector<float>& y, const std::string& shape) {
    std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + shape + "), }";
    header.append(117 - header.size(), ' ').append("\n");
    std::ofstream file(path, std::ios::binary);
    file << "\x93NUMPY\x01" << '\0' << 'v' << '\0' << header;
    file.write(reinterpret_cast<const char*>(y.data()), static_cast<std::streamsize>(y.size() * sizeof(float)));
}

int main(int argc, char** argv) {
    if (argc != 4) return std::fprintf(stderr, "usage: silu CASE_FOLDER ROWS COLUMNS\n"), 2;
    const std::string folder = argv[1];
    auto y = read<float>(folder + "/inputs/x.f32.bin");
    for (float& v : y) v = v / (1 + std::exp(-v));

    const auto truth = read<double>(folder + "/truth/y.f64.bin"), bound = read<double>(folder + "/bound/y.f64.bin");
    size_t outside = 0;
    for (size_t i = 0; i < y.size(); i++) outside += !(std::abs(y[i] - truth[i]) <= bound[i]);
    std::printf("%zu of %zu elements outside the bound\n", outside, y.size());
    write_npy("y.npy", y, std::string(argv[2]) + ", " + argv[3]);
    return outside != 0;
}
