"""The engine comfyui against a server that answers as ComfyUI does, or fails."""

import re

import fake_server
import numpy as np
import pytest

from refsd.cases import CASES
from refsd.engines import comfyui
from refsd.engines.comfyui import NODES, workflow
from refsd.engines.registry import find
from refsd.golden.engine import EngineFailure
from refsd.judges.picture import settings_of

PICTURES = {name.rpartition("/")[2]: case for name, case in CASES.items() if case.op == "picture"}
CASE = PICTURES["cpu-noise-unit-data"]
GREY = np.full((64, 64, 3), 255, np.uint8)
LOADER = {"input": {"required": {"ckpt_name": [["other.safetensors", "tests\\refsd-sd15-f16.safetensors"], {}]}}}
PLACES = {
    "/system_stats": {"system": {"comfyui_version": "0.3.64"}, "devices": [{"type": "cpu"}]},
    "/object_info": {**{name: {} for name in NODES}, "CheckpointLoaderSimple": LOADER},
    "/prompt": {"prompt_id": "1-2", "number": 1, "node_errors": {}},
    "/history/1-2": {"1-2": {"status": {"status_str": "success"}, "outputs": {"picture": {"images": [
        {"filename": "a b.png", "subfolder": "", "type": "temp"}]}}}},
    "/view": fake_server.png(GREY),
}  # fmt: skip


def engine_of(server, profile=""):
    (search,) = find(f"comfyui:{server.url}{profile}", timeout=5)
    assert search.engine is not None, search.why_not
    return search.engine


def test_a_workflow_is_queued_and_its_picture_fetched(monkeypatch):
    monkeypatch.setattr(comfyui, "_PAUSES", (0.01, 0.01))
    looks = iter([{}, {}, PLACES["/history/1-2"]])
    with fake_server.serving(PLACES | {"/history/1-2": lambda handler: next(looks)}) as server:
        engine = engine_of(server)
        assert engine.numerics(CASE).name == "torch-f32" and engine.version == "0.3.64 on cpu"
        np.testing.assert_array_equal(engine.run(CASE, {})["pixels"], np.full((64, 64, 3), 255.0))
    assert server.asked[-1][0] == "/view?filename=a+b.png&subfolder=&type=temp"
    (graph,) = [body["prompt"] for path, body in server.asked if path == "/prompt"]
    assert graph["weights"]["inputs"]["ckpt_name"] == "tests\\refsd-sd15-f16.safetensors"
    sampler = graph["latent"]["inputs"]
    assert (sampler["sampler_name"], sampler["scheduler"], sampler["seed"]) == ("dpmpp_2m", "normal", 1234)


def test_every_link_of_a_workflow_leads_to_a_node():
    for case, more in ((CASE, {}), (CASE, {"clip_skip": 2}), (PICTURES["given-sigmas"], {})):
        graph = workflow(settings_of({**case.params, **more})[0], "x")
        links = [value for node in graph.values() for value in node["inputs"].values() if isinstance(value, list)]
        assert links and {at for at, _ in links} == graph.keys() - {"picture"}
    assert graph["sigmas"]["inputs"]["sigmas"] == "14.0, 6.0, 2.0, 0.5, 0.0"


def test_what_it_refuses():
    with fake_server.serving(PLACES) as server:
        engine = engine_of(server, ":torch-f16")
    assert engine.numerics(CASE).name == "torch-f16"
    refused = {name: engine.refuses(case) for name, case in PICTURES.items()}
    assert [name for name, why in refused.items() if why is None] == ["cpu-noise-unit-data"]
    assert "torch's CPU generator, not with cuda" in refused["euler"]
    assert "by sqrt(sigma^2 + 1)" in refused["cpu-noise"]
    bare = PLACES | {"/object_info": {**PLACES["/object_info"], "CheckpointLoaderSimple": {}}}
    with fake_server.serving(bare) as server:
        assert "lists no checkpoint refsd-sd15-f16: `refsd weights make" in engine_of(server).refuses(CASE)


@pytest.mark.parametrize(
    "places, said",
    [
        ({}, "is no ComfyUI: it has no /system_stats"),
        ({"/system_stats": {"system": {}}}, "is no ComfyUI"),
        (
            PLACES | {"/object_info": {"KSampler": {}}},
            "this ComfyUI has no node CheckpointLoaderSimple, CLIPTextEncode",
        ),
        (PLACES | {"/object_info": b"<html>"}, "object_info answers no JSON"),
    ],
)
def test_another_kind_of_server(places, said):
    with fake_server.serving(places) as server:
        (search,) = find(f"comfyui:{server.url}", timeout=5)
    assert search.engine is None and said in search.why_not


@pytest.mark.parametrize(
    "change, said",
    [
        ({"/prompt": (400, b'{"error": {"type": "prompt_outputs"}}')}, 'answers 400: {"type": "prompt_'),
        ({"/prompt": {}}, "/prompt gives no prompt_id"),
        ({"/history/1-2": {"1-2": {"status": {"status_str": "error", "messages": [["execution_error", {
            "node_type": "VAEDecode", "exception_message": "out of\nmemory"}]]}}}}, "VAEDecode: out of memory"),
        ({"/history/1-2": {"1-2": {"outputs": {}}}}, "ended without a picture"),
        ({"/view": b"JFIF"}, "answers no PNG picture"),
        ({"/view": fake_server.png(GREY[:8])}, "draws 64x8 pixels where 64x64 are asked for"),
    ],
)  # fmt: skip
def test_a_failure_is_one_line(change, said):
    raises = pytest.raises(EngineFailure, match=re.escape(said))
    with fake_server.serving(PLACES | change) as server, raises as raised:
        engine_of(server).run(CASE, {})
    assert "\n" not in str(raised.value)


def test_a_picture_that_does_not_come_is_taken_from_the_queue():
    with fake_server.serving(PLACES | {"/history/1-2": {}, "/queue": b""}) as server:
        engine = engine_of(server)
        engine._client.timeout = 0.3
        with pytest.raises(EngineFailure, match="did not draw within 0 s"):
            engine.run(CASE, {})
    assert server.asked[-1] == ("/queue", {"delete": ["1-2"]})
