"""ONNX files as people make them, for `superopt bench --suite peers` and `--suite exports`.

    PYTHON tests/upstream/exports.py --out DIR [--model NAME ...] [--form FORM ...] [--peers]

Each model is built with random weights from a seed, exported by PyTorch's own exporter, and turned into further
forms: float16 by onnxconverter-common; QDQ, QOperator and dynamic int8 by ONNX Runtime's quantiser.  Nothing is
downloaded.  `DIR/MODEL/FORM.onnx` are the files, `DIR/MODEL/inputs.npz` the inputs, and `DIR/models.json` says what was
made and what the tool that makes it refused.  Files that are there are not made again.  It needs an environment of its
own: `pip install -r tests/upstream/exports.txt`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

FORMS = ("float32", "float16", "qdq", "qoperator", "dynamic")
PEERS = (
    "mobilenet_v2", "efficientnet_b0", "squeezenet1_1", "convnext_tiny", "vit_b_16", "bert_base", "gpt2",
    "llama_decode", "resnet50", "lstm", "densenet121", "swin_t",
)  # fmt: skip
"""The networks that the suite peers compares."""
_SEED = 0
_CALIBRATION = 2  # inputs that the quantiser sees
_TIMEOUT_S = 1800
Made = tuple["object", tuple["object", ...]]  # a torch module and its example inputs
MODELS: dict[str, Callable[[], Made]] = {}


def model(fn: Callable[[], Made]) -> Callable[[], Made]:
    """Take a model in, under the name of the function that builds it."""
    MODELS[fn.__name__] = fn
    return fn


def _vision(name: str, size: int = 224) -> Callable[[], Made]:
    def build() -> Made:
        import torch
        import torchvision

        kind = getattr(torchvision.models, name)
        extra = {"init_weights": True, "aux_logits": False} if name == "googlenet" else {}
        return kind(weights=None, **extra), (torch.randn(1, 3, size, size),)

    build.__name__ = name
    return model(build)


def _timm(name: str, size: int = 224) -> Callable[[], Made]:
    def build() -> Made:
        import timm
        import torch

        return timm.create_model(name, pretrained=False), (torch.randn(1, 3, size, size),)

    build.__name__ = name
    return model(build)


for _name in (
    "mobilenet_v2", "efficientnet_b0", "squeezenet1_1", "convnext_tiny", "vit_b_16", "resnet50", "densenet121",
    "swin_t", "resnet18", "mobilenet_v3_small", "shufflenet_v2_x1_0", "mnasnet0_5", "regnet_y_400mf", "googlenet",
):  # fmt: skip
    _vision(_name)
for _name in ("deit_tiny_patch16_224", "mixer_s32_224", "ghostnet_100", "resmlp_12_224"):
    _timm(_name)
_timm("mobilevit_xxs", 256)


def _encoder(name: str, tokens: int, **sizes: int) -> Callable[[], Made]:
    def build() -> Made:
        import torch
        import transformers

        kind = {"bert": "Bert", "distilbert": "DistilBert", "albert": "Albert", "gpt2": "GPT2"}[name.split("_")[0]]
        config = getattr(transformers, f"{kind}Config")(**sizes, attn_implementation="eager")
        net = getattr(transformers, f"{kind}Model")(config)
        return _plain(net), (torch.randint(0, 1000, (1, tokens)),)

    build.__name__ = name
    return model(build)


_encoder("bert_base", 128)
_encoder("gpt2", 128, use_cache=False)
_encoder("bert_mini", 64, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
_encoder("distilbert_small", 64, dim=256, n_layers=3, n_heads=4, hidden_dim=1024)
_encoder("albert_small", 64, hidden_size=256, num_hidden_layers=3, num_attention_heads=4, intermediate_size=1024)


def _plain(net):
    """A network of transformers that returns its hidden states alone."""
    import torch

    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, ids):
            return self.net(ids).last_hidden_state

    return Plain()


@model
def llama_decode() -> Made:
    """One token through four blocks as Llama has them, 512 tokens in the cache."""
    import torch
    from torch import nn

    width, heads, shared, inner, past = 1024, 16, 4, 2816, 512
    each = width // heads

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x):
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))

    def turned(x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after = Norm(), Norm()
            self.q = nn.Linear(width, width, bias=False)
            self.k = nn.Linear(width, shared * each, bias=False)
            self.v = nn.Linear(width, shared * each, bias=False)
            self.o = nn.Linear(width, width, bias=False)
            self.gate = nn.Linear(width, inner, bias=False)
            self.up = nn.Linear(width, inner, bias=False)
            self.down = nn.Linear(inner, width, bias=False)

        def forward(self, x, cos, sin, keys, values):
            h = self.before(x)
            q = turned(self.q(h).view(1, 1, heads, each).transpose(1, 2), cos, sin)
            k = turned(self.k(h).view(1, 1, shared, each).transpose(1, 2), cos, sin)
            v = self.v(h).view(1, 1, shared, each).transpose(1, 2)
            keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
            wide = [t.repeat_interleave(heads // shared, 1) for t in (keys, values)]
            scores = torch.softmax(q @ wide[0].transpose(2, 3) / each**0.5, -1)
            x = x + self.o((scores @ wide[1]).transpose(1, 2).reshape(1, 1, width))
            h = self.after(x)
            return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h)), keys, values

    class Decode(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block() for _ in range(4)])

        def forward(self, x, cos, sin, *cache):
            out = []
            for i, block in enumerate(self.blocks):
                x, k, v = block(x, cos, sin, cache[2 * i], cache[2 * i + 1])
                out += [k, v]
            return (x, *out)

    cache = [torch.randn(1, shared, past, each) for _ in range(8)]
    return Decode(), (torch.randn(1, 1, width), torch.randn(1, 1, 1, each), torch.randn(1, 1, 1, each), *cache)


def _recurrent(name: str, kind: str, width: int, steps: int) -> Callable[[], Made]:
    def build() -> Made:
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = getattr(torch.nn, kind)(width, width, num_layers=2)

            def forward(self, x):
                return self.cell(x)[0]

        return Net(), (torch.randn(steps, 1, width),)

    build.__name__ = name
    return model(build)


_recurrent("lstm", "LSTM", 512, 64)
_recurrent("gru", "GRU", 128, 16)


@model
def mlp() -> Made:
    import torch
    from torch import nn

    layers = [nn.Linear(256, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), (torch.randn(32, 256),)


@model
def unet_small() -> Made:
    import torch
    from torch import nn

    def pair(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.low = pair(3, 16), pair(16, 32)
            self.up, self.last = nn.ConvTranspose2d(32, 16, 2, stride=2), pair(32, 16)
            self.out = nn.Conv2d(16, 2, 1)

        def forward(self, x):
            a = self.down(x)
            b = self.low(nn.functional.max_pool2d(a, 2))
            return self.out(self.last(torch.cat([a, self.up(b)], 1)))

    return Net(), (torch.randn(1, 3, 96, 96),)


@model
def temporal_convolutions() -> Made:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList([nn.Conv1d(64, 64, 3, padding=2**i, dilation=2**i) for i in range(5)])

        def forward(self, x):
            for conv in self.convs:
                x = x + torch.tanh(conv(x))
            return x

    return Net(), (torch.randn(1, 64, 256),)


@model
def upscaler() -> Made:
    import torch
    from torch import nn

    layers = [nn.Conv2d(1, 32, 5, padding=2), nn.Tanh(), nn.Conv2d(32, 32, 3, padding=1), nn.Tanh()]
    return nn.Sequential(*layers, nn.Conv2d(32, 9, 3, padding=1), nn.PixelShuffle(3)), (torch.randn(1, 1, 64, 64),)


# ---- files


def exported(name: str, path: Path) -> None:
    """Export a model, and write its inputs beside it."""
    import torch

    torch.manual_seed(_SEED)
    net, inputs = MODELS[name]()
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
                module.weight.uniform_(0.8, 1.2)
                module.bias.normal_(0, 0.1)
            if isinstance(module, torch.nn.Conv2d):  # as trained ones: of one size from layer to layer
                torch.nn.init.kaiming_normal_(module.weight)
    net.eval()
    names = [f"input{i}" for i in range(len(inputs))]
    torch.onnx.export(net, inputs, path, input_names=names, dynamo=True, external_data=False, verbose=False)
    np.savez(path.parent / "inputs.npz", **{n: x.numpy() for n, x in zip(names, inputs, strict=True)})


class _Calibration:
    """Inputs like those of the file, for the quantiser."""

    def __init__(self, folder: Path) -> None:
        rng = np.random.default_rng(_SEED)
        given = dict(np.load(folder / "inputs.npz"))
        self.rows = [given]
        for _ in range(_CALIBRATION - 1):
            again = {n: rng.permutation(x.ravel()).reshape(x.shape) for n, x in given.items()}
            self.rows.append(again)
        self.left = list(self.rows)

    def get_next(self):
        return self.left.pop() if self.left else None

    def rewind(self):
        self.left = list(self.rows)

    def set_range(self, *a, **k):
        pass


def made(name: str, form: str, path: Path) -> None:
    """Write a form of a model.

    Raises:
        Exception: whatever the tool that makes it says.
    """
    source = path.with_name("float32.onnx")
    if form == "float32":
        exported(name, path)
        return
    import onnx

    if form == "float16":
        from onnxconverter_common import float16

        onnx.save(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True), path)
        return
    from onnxruntime import quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        if form == "dynamic":
            q.quantize_dynamic(prepared, path)
            return
        how = q.QuantFormat.QDQ if form == "qdq" else q.QuantFormat.QOperator
        q.quantize_static(
            prepared, path, _Calibration(path.parent), quant_format=how, per_channel=form == "qdq",
            activation_type=q.QuantType.QUInt8, weight_type=q.QuantType.QInt8,
        )  # fmt: skip


def _attempt(name: str, form: str, path: Path) -> None:
    """Write a form or the reason why there is none: in a process of its own."""
    warnings.simplefilter("ignore")
    part = path.with_suffix(".part.onnx")
    try:
        made(name, form, path if form == "float32" else part)
        if form != "float32":
            part.replace(path)
        path.with_suffix(".refused").unlink(missing_ok=True)
    except BaseException as error:
        traceback.print_exc()
        path.unlink(missing_ok=True)
        path.with_suffix(".refused").write_text(f"{type(error).__name__}: {str(error)[:300]}", encoding="utf-8")
    finally:
        part.unlink(missing_ok=True)


def main() -> int:
    """Make what is asked for and is not there; 1 where something could not be made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", action="append", choices=sorted(MODELS), help="these alone (default: all)")
    parser.add_argument("--form", action="append", choices=FORMS, help="these alone (default: all)")
    parser.add_argument("--peers", action="store_true", help="the networks of the suite peers alone")
    asked = parser.parse_args()
    rows = []
    for name in asked.model or (PEERS if asked.peers else MODELS):
        folder = asked.out / name
        folder.mkdir(parents=True, exist_ok=True)
        for form in ("float32", *(f for f in asked.form or FORMS if f != "float32")):
            path = folder / f"{form}.onnx"
            if not path.exists():
                process = multiprocessing.get_context("spawn").Process(target=_attempt, args=(name, form, path))
                process.start()
                process.join(_TIMEOUT_S)
                process.kill()
            print(f"{name} {form}: {'there' if path.exists() else 'REFUSED'}", file=sys.stderr, flush=True)
    for folder in sorted(p for p in asked.out.iterdir() if p.is_dir()):
        for form in FORMS:
            path, refused = folder / f"{form}.onnx", folder / f"{form}.refused"
            row = {"model": folder.name, "form": form, "peers": folder.name in PEERS and form == "float32"}
            if path.exists():
                rows.append({**row, "file": f"{folder.name}/{path.name}"})
            elif refused.exists():
                rows.append({**row, "refused": refused.read_text(encoding="utf-8")})
    (asked.out / "models.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return any("refused" in row for row in rows)


if __name__ == "__main__":
    sys.exit(main())
