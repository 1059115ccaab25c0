"""refsd info, as a person and as a machine call it."""

import json
import shutil

import numpy as np
import pytest

from refsd.cli import main
from refsd.diagnosis import health
from refsd.files.formats import open_weights
from refsd.files.writers import Spec, write_safetensors
from refsd.golden.case import Case
from refsd.golden.store import Store
from refsd.numerics.tensor import stored


@pytest.fixture
def info(monkeypatch, capsys):
    """Arguments -> exit code, stdout, stderr."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["refsd", "info", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            main()
        return exit.value.code or 0, *capsys.readouterr()

    return run


def test_a_single_file(info, single_file):
    code, out, err = info(single_file)
    assert (code, err) == (0, "")
    assert "Stable Diffusion 1.x in the original layout, safetensors" in out
    assert "channels 32, widths 32:64" in out
    assert "alphas_cumprod" in out
    assert "missing" not in out


def test_a_recipe_has_its_own_name(info):
    assert info("recipe:taesd:tiny")[1].startswith("recipe:taesd:tiny\n")


def test_json(info, single_file, parts):
    code, out, _ = info(single_file, "--json", "--tensors")
    said = json.loads(out)
    assert code == 0
    assert (said["family"], said["layout"], said["format"]) == ("sd15", "ldm", ["safetensors"])
    for part, arrays in parts.items():
        of = said["components"][part]
        assert of["tensors"] == len(arrays)
        assert of["parameters"] == sum(array.size for array in arrays.values())
        assert of["types"] == {"f32": {"tensors": len(arrays), "bytes": 4 * of["parameters"]}}
        assert of["missing"] == of["unused"] == of["misshapen"] == []
    assert said["components"]["unet"]["size"]["context_dim"] == 24
    assert len(said["tensor_list"]) == sum(map(len, parts.values())) + 3
    by_name = {tensor["name"]: tensor for tensor in said["tensor_list"]}
    assert by_name["model.diffusion_model.out.2.bias"]["is"] == "unet: out.2.bias"
    assert by_name["alphas_cumprod"]["is"] is None


def test_files_that_refsd_wrote_are_no_broken_model(info, tmp_path):
    """Taps have the names of a model's layers, and may be zero, constant and equal."""
    path, names = (
        tmp_path / "taps.safetensors",
        ["layers.0.attention", "layers.0", "layers.1.attention", "layers.1"],
    )
    taps = [stored(np.zeros((1, 7, 16), np.float32)) for _ in names]
    record = {"tool": "refsd forward", "component": "zimage", "numerics": "float64"}
    write_safetensors(path, {name: Spec("f32", (1, 7, 16)) for name in names}, taps, record)
    code, out, _ = info(path)
    assert code == 0
    assert "results of `refsd forward` (component zimage, numerics float64), safetensors; 4 tensors" in out
    assert json.loads(info(path, "--json")[1])["runs"] is False

    taps[2] = stored(np.full((1, 7, 16), np.nan, np.float32))
    write_safetensors(path, {name: Spec("f32", (1, 7, 16)) for name in names}, taps, record)
    assert info(path)[0] == 2


def test_a_golden_names_its_case(info, tmp_path):
    store = Store(tmp_path)
    case = Case("rms_norm/one", "rms_norm", {}, {})
    store.put(case, {}, {"y": np.ones((2, 3))}, "0")
    (blob,) = (tmp_path / "blobs").iterdir()
    code, out, _ = info(blob)
    assert code == 0 and "the golden of rms_norm/one (`refsd golden show rms_norm/one`" in out
    shutil.rmtree(tmp_path / "cases" / "rms_norm")
    assert "of no case that is left there" in info(blob)[1]


def test_a_folder_with_its_tokenizer(info, folder):
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "merges.txt").write_text("")
    said = json.loads(info(folder, "--json")[1])
    assert said["layout"] == "diffusers"
    assert said["tokenizer"] == str(folder / "tokenizer" / "merges.txt")


@pytest.mark.parametrize(
    ("installed", "says"),
    [
        (("open_clip", "huggingface_hub"), "the package open_clip_torch"),
        (("huggingface_hub",), "openai/clip-vit-large-patch14 on the Hugging Face Hub, when online"),
        ((), None),
    ],
)
def test_where_the_tokenizer_would_come_from(info, single_file, monkeypatch, installed, says):
    monkeypatch.setattr("refsd.weights.describe.importlib.util.find_spec", lambda name: name in installed)
    assert json.loads(info(single_file, "--json")[1])["tokenizer"] == says


def test_what_does_not_fit_is_exit_2(info, single, as_safetensors):
    del single["model.diffusion_model.out.2.bias"]
    code, out, _ = info(as_safetensors(single | {"stray": np.ones(1)}))
    assert code == 2
    assert out.startswith("1 tensor missing: model.diffusion_model.out.2.bias (unet)\n1 unknown tensor: stray")
    assert 'unet "out.2.bias" [4]' in out
    assert "stray" in out


def test_values(info, single, as_safetensors):
    assert info(as_safetensors(single), "--values")[0] == 0
    name = "first_stage_model.quant_conv.bias"
    bad = single[name].copy()
    bad[:3] = [np.nan, np.inf, 1]
    path = as_safetensors(single | {name: bad})
    for options in ((), ("--values",)):
        code, out, _ = info(path, *options)
        assert code == 2
        assert out.startswith(f"1 tensor with NaN or infinity: {name} has 2\n")
    said = json.loads(info(path, "--json")[1])
    assert said["verdict"] == "broken"
    assert [finding["tensors"] for finding in said["findings"]] == [[name]]


def test_a_sample_of_a_large_file_misses_what_all_values_show(info, single, as_safetensors, monkeypatch):
    name = "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight"
    large = np.random.default_rng(1).standard_normal((5000, 64), np.float32)
    large[3000, 5] = np.nan
    path = as_safetensors(single | {name: large})
    assert info(path)[0] == 2
    monkeypatch.setattr(health, "_SMALL", 2**20)
    code, out, _ = info(path)
    assert code == 0 and "nothing wrong in a sample of each tensor; --values reads all" in out
    assert info(path, "--values")[0] == 2


def test_any_gguf(info, as_gguf):
    code, out, _ = info(
        as_gguf({"blk.0.w": np.ones(8, np.float16), "blk.1.w": np.ones(8, np.float32)}), "--tensors"
    )
    assert code == 0
    assert "no model that refsd knows, gguf; 2 tensors" in out
    assert "blk" in out
    assert "blk.1.w f32 [8]" in out


def test_a_type_that_refsd_cannot_read(info, tmp_path):
    header = b'{"w":{"dtype":"F4","shape":[2,256],"data_offsets":[0,256]}}'
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(256))
    code, out, _ = info(tmp_path / "a.safetensors", "--tensors")
    assert code == 0
    assert "refsd cannot read f4" in out
    assert "w f4 [2, 256]" in out
    code, out, _ = info(tmp_path / "a.safetensors", "--values")
    assert code == 1
    assert "1 tensor of types that refsd cannot read: w (f4)" in out


def test_another_family(info, as_safetensors):
    code, out, _ = info(as_safetensors({"vace_blocks.0.weight": np.ones((3, 1))}))
    assert code == 0
    assert "Wan VACE, which refsd does not run" in out


def _lora(module, rows, columns):
    return {f"{module}.lora_up.weight": np.ones((rows, 2)), f"{module}.lora_down.weight": np.ones((2, columns))}


def test_an_adapter(info, as_safetensors):
    tensors = _lora("lora_unet_mid_block_attentions_0_proj_in", 1280, 1280)
    tensors |= _lora("lora_te_text_model_encoder_layers_0_mlp_fc1", 3072, 768)
    tensors |= _lora("lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k", 320, 768)
    path = as_safetensors(tensors)
    code, out, _ = info(path)
    assert code == 0
    assert "a LoRA for Stable Diffusion 1.x, which refsd runs with --lora" in out
    assert "layers      3, by their names and shapes" in out
    said = json.loads(info(path, "--json")[1])
    assert said["adapter"] == {
        "kind": "LoRA", "models": ["Stable Diffusion 1.x"], "layers": 3, "unknown": [], "embeddings": [],
        "runs": True, "resized": [],
        "trainer": "kohya's sd-scripts, or one with its names", "ranks": {"2": 3}, "scales": {},
    }  # fmt: skip
    assert (said["components"], said["runs"]) == ({}, False)
    code, out, _ = info(as_safetensors(tensors | {"lora_unet_elsewhere.lora_up.weight": np.ones((3, 1))}))
    assert "a LoRA for Stable Diffusion 1.x, which refsd does not run" in out
    assert "unknown     1: lora_unet_elsewhere.lora_up.weight" in out


def test_names_are_neither_markup_nor_terminal_codes(info, as_safetensors):
    names = ["[bold red]x[/]", "a\x1b[31mb", "c\nd", "[/]", "\u202ee"]
    path = as_safetensors({name: np.ones(1, np.float32) for name in names})
    code, out, _ = info(path, "--tensors")
    assert code == 0
    assert "[bold red]x[/]" in out
    assert "\x1b[31mb" not in out
    assert "c\nd" not in out
    assert "\u202e" not in out


HOSTILE = {
    "cut.safetensors": b"\xff" * 8 + b"{}",
    "deep.safetensors": (10**5).to_bytes(8, "little") + b"[" * 10**5,
    "a.gguf": b"GGUF\3\0\0\0" + b"\xff" * 16,
    "a.ckpt": b"\x80\x02}q\x00.",
    "empty.safetensors": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("options", [(), ("--json", "--tensors", "--values")])
def test_hostile_is_one_line_and_exit_2(info, tmp_path, name, options):
    (tmp_path / name).write_bytes(HOSTILE[name])
    code, out, err = info(tmp_path / name, *options)
    assert (code, out) == (2, "")
    assert err.startswith(f"refsd: {tmp_path / name}: ")
    assert err.count("\n") == 1


def test_no_such_file(info, tmp_path):
    code, _, err = info(tmp_path / "none")
    assert code == 2
    assert "No such file" in err


def test_names_must_not_make_a_table_large(info, as_safetensors):
    names = ["down_blocks.999.x", "down_blocks.0.resnets.999.y", "down_blocks.99.x", "down_blocks.0.resnets.99.y"]
    assert info(as_safetensors({name: np.ones(1) for name in names}))[0] == 2


def test_what_the_denoiser_predicts(info, single_file, tmp_path):
    weights = open_weights(single_file, mapped=False)
    for marks, metadata, says in (
        (("v_pred", "ztsnr"), {}, "predicts    v (zero terminal SNR)"),
        (
            (),
            {"modelspec.prediction_type": "v"},
            "v, by its metadata alone (modelspec.prediction_type)",
        ),
    ):
        tensors = {**dict(weights.items()), **{mark: stored(np.zeros(0, np.float32)) for mark in marks}}
        specs = {name: Spec(t.type, t.shape) for name, t in tensors.items()}
        path = tmp_path / "marked.safetensors"
        write_safetensors(path, specs, tensors.values(), metadata)
        assert says in info(path)[1]
    assert "predicts" not in info(single_file)[1]


def test_an_unmatched_layer_names_every_model_that_it_could_be_for(info, as_safetensors):
    tensors = _lora("lora_unet_middle_block_1_transformer_blocks_0_attn1_to_q", 1280, 1280)
    code, out, _ = info(as_safetensors(tensors | _lora("lora_unet_elsewhere", 3, 1)))
    assert code == 1
    assert "of no layer of Stable Diffusion 1.x, Stable Diffusion 2.x or SDXL" in out
