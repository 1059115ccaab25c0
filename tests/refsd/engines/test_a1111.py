"""The engine a1111 against a server that answers as A1111, Forge or sd-server do, or not at all."""

import json
import re

import fake_server
import numpy as np
import pytest

from refsd.cases import CASES
from refsd.engines import registry
from refsd.engines.a1111 import find
from refsd.golden.engine import EngineFailure

PICTURES = {name.rpartition("/")[2]: case for name, case in CASES.items() if case.op == "picture"}
GREY = np.full((64, 64, 3), 7, np.uint8)
WEBUI = {
    "/sdapi/v1/options": {"sd_model_checkpoint": "refsd-sd15-f16.safetensors [0123]", "samples_format": "jpg"},
    "/sdapi/v1/samplers": [{"name": n, "aliases": []} for n in ("DPM++ 2M", "Euler a", "Euler", "Heun")],
    "/sdapi/v1/schedulers": [{"name": n, "label": n.title()} for n in ("automatic", "uniform", "karras")],
    "/sdapi/v1/txt2img": {"images": [fake_server.png_text(GREY)], "parameters": {}, "info": ""},
}
SD_SERVER = WEBUI | {
    "/sdcpp/v1/capabilities": {},
    "/sdapi/v1/options": {"sd_model_checkpoint": "refsd-sd15-f16"},
    "/sdapi/v1/samplers": [{"name": n} for n in ("default", "euler", "heun", "dpm++2m")],
    "/sdapi/v1/schedulers": [{"name": n} for n in ("default", "discrete", "karras")],
}


def engine_of(server, profile=""):
    (search,) = find(server.url + profile, timeout=5)
    assert search.engine is not None, search.why_not
    return search.engine


def test_a1111_is_asked_for_the_case_and_cuts_bytes_off():
    with fake_server.serving(WEBUI) as server:
        engine = engine_of(server)
        assert (engine.name, engine.numerics(PICTURES["euler"]).name) == ("a1111", "torch-f16")
        assert "refsd-sd15-f16" in engine.version
        y = engine.run(PICTURES["euler"], {})["pixels"]
        np.testing.assert_array_equal(y, GREY + 0.5)
    (body,) = [body for path, body in server.asked if path == "/sdapi/v1/txt2img"]
    settings = body.pop("override_settings")
    assert settings["randn_source"] == "NV" and settings["samples_format"] == "png"
    assert body["sampler_name"] == "Euler" and body["scheduler"] == "uniform" and body["seed"] == 42
    assert body["prompt"] == PICTURES["euler"].params["prompt"] and body["cfg_scale"] == 3.0
    assert body["save_images"] is False
    assert "/home" not in json.dumps(server.asked) and "tmp" not in json.dumps(server.asked)


def test_what_each_kind_refuses():
    with fake_server.serving(WEBUI) as server:
        a1111 = engine_of(server, ":torch-bf16")
        assert a1111.numerics(PICTURES["euler"]).name == "torch-bf16"
        refused = {name: a1111.refuses(case) for name, case in PICTURES.items()}
    assert [name for name, why in refused.items() if why is None] == ["euler", "tall-dpmpp2m-karras", "cpu-noise"]
    assert refused["given-sigmas"] == "the API of a1111 cannot ask for noise levels"
    assert refused["cpu-noise-unit-data"] == "a1111 does not scale the first noise as comfyui does"
    with fake_server.serving(SD_SERVER) as server:
        sd_server = engine_of(server)
        assert sd_server.numerics(PICTURES["euler"]).name == "ggml-cpu" and sd_server.deviations(PICTURES["euler"])
        refused = {name: sd_server.refuses(case) for name, case in PICTURES.items()}
        np.testing.assert_array_equal(sd_server.run(PICTURES["given-sigmas"], {})["pixels"], GREY)
    assert refused["given-sigmas"] is None
    assert refused["cpu-noise"] == "the API of sd-server cannot ask for the generator cpu: it has cuda"
    body = server.asked[-1][1]
    extra = json.loads(re.search("<sd_cpp_extra_args>(.*)</sd_cpp_extra_args>", body["prompt"])[1])
    assert extra["sample_params"] == {"custom_sigmas": [14.0, 6.0, 2.0, 0.5, 0.0]} and "scheduler" not in body
    other = CASES["silu/f32/" + next(n for n in CASES if n.startswith("silu/f32/")).removeprefix("silu/f32/")]
    assert "whole pictures" in sd_server.refuses(other)


@pytest.mark.parametrize(
    "change, said",
    [
        (
            {"/sdapi/v1/options": {"sd_model_checkpoint": None}},
            "has loaded no model, not refsd-sd15-f16: `refsd weights",
        ),
        ({"/sdapi/v1/options": {"sd_model_checkpoint": "v1-5-pruned"}}, "has loaded v1-5-pruned"),
        ({"/sdapi/v1/samplers": [{"name": "DDIM"}]}, "a1111 has no sampler that is refsd's euler"),
        ({"/sdapi/v1/schedulers": []}, "a1111 has no scheduler that is refsd's discrete"),
    ],
)
def test_a_server_without_what_the_case_needs(change, said):
    with fake_server.serving(WEBUI | change) as server:
        assert said in engine_of(server).refuses(PICTURES["euler"])


@pytest.mark.parametrize(
    "places, said",
    [
        ({}, "has no /sdapi/v1/options: it is no server of this kind, or A1111 without --api"),
        ({"/sdapi/v1/options": b"<html>"}, "it is no server of this kind"),
        (WEBUI | {"/sdapi/v1/samplers": {"detail": "no"}}, "samplers: expected a list of objects with a name"),
        (WEBUI | {"/sdapi/v1/samplers": b"<html>"}, "samplers answers no JSON: <html>"),
    ],
)
def test_another_kind_of_server(places, said):
    with fake_server.serving(places) as server:
        (search,) = registry.find(f"a1111:{server.url}", timeout=5)
    assert search.engine is None and said in search.why_not and "\n" not in search.why_not


def test_no_address():
    assert "give a1111:http" in registry.find("a1111")[0].why_not
    assert not {"a1111", "comfyui"} & {*registry.default()}


@pytest.mark.parametrize(
    "answer, said",
    [
        ({"images": []}, "answers without a picture"),
        ([], "answers without a picture"),
        ({"images": ["%%%"]}, "the picture is no base64"),
        ({"images": ["aGVsbG8="]}, "answers no PNG picture"),
        ({"images": [fake_server.png_text(GREY[:, :32])]}, "draws 32x64 pixels where 64x64 are asked for"),
        (
            (500, b'{"error": "OutOfMemoryError", "errors": "CUDA out of memory"}'),
            "500: OutOfMemoryError; CUDA out of",
        ),
        (fake_server.close, "closed the connection without an answer"),
    ],
)
def test_a_bad_picture_is_one_line(answer, said):
    raises = pytest.raises(EngineFailure, match=re.escape(said))
    with fake_server.serving(WEBUI | {"/sdapi/v1/txt2img": answer}) as server, raises as raised:
        engine_of(server).run(PICTURES["euler"], {})
    assert "\n" not in str(raised.value)


def test_forge_is_told_by_its_options():
    options = {"sd_model_checkpoint": "refsd-sd15-f16", "forge_preset": "sd"}
    with fake_server.serving(WEBUI | {"/sdapi/v1/options": options}) as server:
        assert engine_of(server).name == "forge"
