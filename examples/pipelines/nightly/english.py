"""Data and model of this folder's flows: the texts of Python's own help, and a small network that predicts the next."""

import hashlib
from io import BytesIO
from keyword import iskeyword
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

CONTEXT = 8  # bytes that the model sees
SETS = ("keywords", "types", "language")


def set_of(topic: str) -> str:
    """The evaluation set that a topic would belong to."""
    if iskeyword(topic):
        return "keywords"
    return "types" if "type" in topic else "language"


def prepare() -> dict[str, str]:
    """Training text and a held-out text for each evaluation set; every third topic, by name, is held out."""
    texts = dict.fromkeys(("training", *SETS), "")
    for number, topic in enumerate(sorted(topics)):
        texts[set_of(topic) if number % 3 == 0 else "training"] += topics[topic]
    return texts


def version_of(texts: dict[str, str]) -> str:
    """The same texts have the same version, and no others."""
    digest = hashlib.sha256()
    for name, text in sorted(texts.items()):
        for part in (name, text):
            digest.update(len(part.encode()).to_bytes(8, "big") + part.encode())
    return digest.hexdigest()[:12]


class Model(nn.Module):
    """Scores of the next byte, from the eight before it."""

    def __init__(self, width: int = 24, hidden: int = 192) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.layers = nn.Sequential(nn.Linear(CONTEXT * width, hidden), nn.GELU(), nn.Linear(hidden, 256))

    def forward(self, x_bt: Tensor) -> Tensor:
        return self.layers(self.bytes(x_bt).flatten(1))


def draw(text: str, *, batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random places of the text: the bytes before, and the one to predict."""
    data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    starts = torch.randint(len(data) - CONTEXT, (batch, 1), generator=torch.Generator().manual_seed(seed))
    windows = data[starts + torch.arange(CONTEXT + 1)].long()
    return windows[:, :-1], windows[:, -1]


def bits_per_byte(model: nn.Module, text: str, *, seed: int = 0) -> float:
    """How well the model predicts a text: 8 knows nothing of it, 0 knows all."""
    with torch.no_grad():
        x_bt, y_b = draw(text, batch=2000, seed=seed)
        return cross_entropy(model(x_bt), y_b).item() / torch.log(torch.tensor(2.0)).item()


def pack(model: nn.Module) -> bytes:
    """The weights as bytes, for an artifact that outlives every checkpoint folder."""
    file = BytesIO()
    torch.save(model.state_dict(), file)
    return file.getvalue()


def unpack(weights: bytes) -> Model:
    model = Model()
    model.load_state_dict(torch.load(BytesIO(weights), weights_only=True))
    return model


def write(model: Model, start: str, *, length: int, seed: int = 0) -> str:
    """Let the model go on with a text."""
    generator = torch.Generator().manual_seed(seed)
    said = list(start.encode())
    with torch.no_grad():
        for _ in range(length):
            scores = model(torch.tensor([said[-CONTEXT:]]))[0] / 0.7
            said.append(int(torch.multinomial(scores.softmax(0), 1, generator=generator)))
    return bytes(said).decode(errors="replace")
