"""What frameworks save of a model within a session and after it, and how it is loaded again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.local_master import LocalMaster
from support.saving import Saved, of_folder, outcome, state_in, with_values
from support.sessions import join

pytest.importorskip("accelerate")
pytest.importorskip("lightning")
pytest.importorskip("transformers")

import safetensors.torch  # only if they are there
from accelerate import Accelerator, load_checkpoint_in_model
from lightning.pytorch import LightningModule, Trainer
from transformers import BertConfig, BertForMaskedLM, PreTrainedModel

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
]


def model() -> PreTrainedModel:
    """Return a model with tied weights, a norm, and parts of several sizes."""
    torch.manual_seed(1)
    return BertForMaskedLM(
        BertConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=16,
        )
    )  # fmt: skip


class Lit(LightningModule):
    """Trains nothing: what it has is saved."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss: torch.Tensor = 0 * sum(p.sum() for p in self.parameters())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def accelerated_model(module: PreTrainedModel, folder: Path) -> Saved:
    Accelerator(cpu=True).save_model(module, folder, max_shard_size="8KB")
    loaded = model()
    load_checkpoint_in_model(loaded, folder)
    return of_folder(folder, loaded.state_dict())


def accelerated_state(module: PreTrainedModel, folder: Path, **options: Any) -> Saved:
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(module)
    accelerator.save_state(str(folder), **options)
    other, loaded = Accelerator(cpu=True), model()
    other.prepare(loaded)
    other.load_state(str(folder))
    for path in folder.glob("random_states*"):  # of this moment
        path.unlink()
    return of_folder(folder, loaded.state_dict())


def pretrained(module: PreTrainedModel, folder: Path, **options: Any) -> Saved:
    module.save_pretrained(folder, **options)
    return of_folder(folder, BertForMaskedLM.from_pretrained(folder).state_dict())


def lit(module: nn.Module, folder: Path) -> Saved:
    """Save as a Trainer does, and load."""
    trainer = Trainer(
        accelerator="cpu", max_steps=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Lit(module), torch.utils.data.DataLoader(torch.zeros(1, 1)))  # type: ignore[arg-type]
    trainer.save_checkpoint(folder / "lit.ckpt")
    loaded = Lit.load_from_checkpoint(folder / "lit.ckpt", module=model(), weights_only=False)
    return of_folder(folder, loaded.module.state_dict())


def encoder_alone(module: PreTrainedModel, folder: Path) -> Saved:
    safetensors.torch.save_model(module.bert, str(folder / "bert.safetensors"))
    return of_folder(folder, safetensors.torch.load_file(folder / "bert.safetensors"))


WAYS: dict[str, Callable[..., Saved]] = {
    "accelerate's save_model": accelerated_model,
    "accelerate's save_state": accelerated_state,
    "accelerate's save_state with torch": lambda module, folder: accelerated_state(
        module, folder, safe_serialization=False
    ),
    "transformers' save_pretrained": pretrained,
    "transformers' save_pretrained in shards": lambda module, folder: pretrained(
        module, folder, max_shard_size="8KB"
    ),
    "a part with safetensors": encoder_alone,
    "Lightning's save_checkpoint": lit,
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_saves_the_same_within_a_session_and_after_it(
    master: LocalMaster, way: str, tmp_path: Path
) -> None:
    module = model()
    session = join(master, module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)
    session.step()
    for moment in ("within", "finished"):
        never = with_values(model(), module.state_dict().values())
        folders = [tmp_path / moment / name for name in ("one", "other")]
        for folder in folders:
            folder.mkdir(parents=True)

        found = outcome(WAYS[way], module, folders[0])

        assert found == outcome(WAYS[way], never, folders[1])
        assert isinstance(found, Saved), found
        assert set(found.values) == set(state_in(module)) or "part" in way
        if session.is_open:
            session.finish()
