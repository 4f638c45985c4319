"""The tokenizer: the reference's ids, control tokens as text where asked, and a fingerprint of content."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.tokenizer import MARKERS, Tokenizer, is_encodable, load_tokenizer
from tests.datamaker import write_tokenizer

TEXTS = ["", " ", "a red circle", "héé 🙂\n", "ends <|im_end|> here<|vision_start|>", "<|im_start|><|endoftext|>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(str(folder))


def test_ids_are_those_of_the_reference_one_by_one_and_in_batches(folder: Path, tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer

    plain = AutoTokenizer.from_pretrained(str(folder))
    plain.add_tokens([token for token in MARKERS.values() if token != "<|im_end|>"])
    expected = [plain.encode(text) for text in TEXTS]
    assert tokenizer.encode_batch(TEXTS) == expected
    assert [tokenizer.encode(text) for text in TEXTS] == expected
    assert tokenizer.special_tokens == {name: plain.convert_tokens_to_ids(token) for name, token in MARKERS.items()}
    assert tokenizer.vocab_size == len(plain)


def test_control_tokens_spelled_in_a_text_stay_text_where_asked(tokenizer: Tokenizer) -> None:
    added = {tokenizer.encode(token)[0] for token in tokenizer.control_tokens}
    for text in TEXTS:
        ids = tokenizer.encode(text, keep_control_text=True)
        assert not added & set(ids)
        assert tokenizer.decode(ids) == text
        if not tokenizer.spells_control_token(text):
            assert ids == tokenizer.encode(text)


def test_equal_tokenizers_in_different_folders_have_equal_fingerprints(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert load_tokenizer(str(copy)).fingerprint == tokenizer.fingerprint
    other = shutil.copytree(folder, tmp_path / "other")
    content = json.loads((other / "tokenizer.json").read_text())
    content["model"]["merges"].pop()
    (other / "tokenizer.json").write_text(json.dumps(content))
    assert load_tokenizer(str(other)).fingerprint != tokenizer.fingerprint


def test_a_pickled_tokenizer_is_its_path(tokenizer: Tokenizer) -> None:
    pickled = pickle.dumps(tokenizer)
    assert len(pickled) < 500
    assert pickle.loads(pickled) is tokenizer


def test_a_missing_tokenizer_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_tokenizer(str(tmp_path / "nothing"))


def test_a_lone_surrogate_is_no_text() -> None:
    assert is_encodable("a é 🙂")
    assert not is_encodable("half \ud83d")
