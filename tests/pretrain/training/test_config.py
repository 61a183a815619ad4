import json
from dataclasses import fields

import numpy as np
import pytest
import torch

from flatnce.pretrain import PRESETS, TrainConfig, preset
from flatnce.pretrain.data import CATALOG
from flatnce.pretrain.training.learner import build_encoder


def test_leaf_names_are_unique_over_the_sections():
    config = TrainConfig()
    leaves = [leaf.name for part in fields(config) for leaf in fields(getattr(config, part.name))]
    assert len(leaves) == len(set(leaves)) == len(config.flat())


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_being_written_and_read(name):
    config = preset(name)
    assert TrainConfig.from_plain(config.plain()) == config


@pytest.mark.parametrize("name", CATALOG)
def test_every_data_set_has_a_preset_that_trains_on_it(name):
    config = preset(name)
    assert config.data.data == name
    assert config.data.split in CATALOG[name].splits


@pytest.mark.parametrize("name, size", [("./photos", 128), ("stl10", 96), ("imagenet", 224)])
def test_a_preset_for_large_images_has_the_standard_stem_and_takes_any_backbone(name, size):
    config = preset(name)
    assert (config.views.view_size or CATALOG[name].size) == size
    with torch.device("meta"):
        encoder = build_encoder(config.model, torch.zeros(2, 3, size, size))
    assert encoder.backbone.conv1.kernel_size == (7, 7)
    small = config.override(backbone="small")
    assert build_encoder(small.model, torch.zeros(2, 3, 8, 8)).backbone.width == 128


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"batchsize": 3}, "'batchsize'.*did you mean 'batch_size'"),
        ({"objective": "infonec"}, "objective='infonec'.*did you mean 'infonce'"),
        ({"optimizer": "adam"}, "optimizer='adam'.*did you mean 'adamw'"),
        ({"scaling": "cubic"}, "scaling='cubic' is unknown"),
        ({"precision": "float16"}, "precision='float16'.*bfloat16"),
        ({"temperature": 0.0}, "temperature=0.0 must be"),
        ({"ess": 1.5}, "ess=1.5"),
        ({"ess_end": 0.2, "objective": "infonce"}, "ess_end=0.2.*ess=0.3"),
        ({"ess_end": 0.2}, "ess_end=0.2.*ess=0.075"),
        ({"ess": 0.3, "learn_temperature": True}, "learn_temperature=True and ess=0.3 both"),
        ({"momentum_encoder": 0.99}, "queue=0"),
        ({"momentum_encoder": 1.5, "queue": 8}, "momentum_encoder=1.5"),
        ({"rate": 0.0}, "rate=0.0"),
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 1}, "batch_size=1 leaves no negatives"),
        ({"micro_batch": 512}, "micro_batch=512.*batch_size=256"),
        ({"log_every": 0}, "log_every=0"),
        ({"keep": 0}, "keep=0"),
        ({"checkpoint_every": 0.0}, "checkpoint_every"),
        ({"watch_every": float("inf")}, "watch_every=inf must be a positive finite number"),
        ({"batch_size": "32"}, "^batch_size='32' has type str; give int$"),
        ({"epochs": 2.5}, r"^epochs=2\.5 has type float; give int$"),
        ({"epochs": None}, "^epochs=None has type NoneType; give int$"),
        ({"seed": True}, "^seed=True has type bool; give int$"),
        ({"rate": "0.1"}, r"^rate='0\.1' has type str; give float$"),
        ({"pretrained": "yes"}, "^pretrained='yes' has type str; give bool$"),
        ({"blur": "on"}, r"^blur='on' has type str; give .*float.*'auto'"),
        ({"keep": "3"}, r"^keep='3' has type str; give int \| None$"),
        ({"device": torch.device("cpu")}, "^device=device.* has type device; give str$"),
    ],
)
def test_a_bad_value_is_named_with_a_remedy(settings, words):
    with pytest.raises(ValueError, match=words):
        TrainConfig().override(**settings)


def test_numbers_of_numpy_and_torch_and_paths_become_plain_values(tmp_path):
    plain = {"batch_size": 32, "rate": 0.5, "seed": 3, "root": str(tmp_path)}
    given = {"batch_size": np.int64(32), "rate": np.float32(0.5), "seed": torch.tensor(3)}
    config = TrainConfig().override(**given, root=tmp_path)
    assert json.dumps({name: config.flat()[name] for name in plain}) == json.dumps(plain)


@pytest.mark.parametrize(
    "sections, said",
    [
        (
            {"run": {"batch_size": "64"}},
            "place: batch_size='64' has type str; give int",
        ),
        ({"run": [1]}, r"place: Expected object, got array"),
        ({"all": {"batchsize": 3}}, "place: 'batchsize' is not a setting"),
        ({"run": {"batch_size": 1}}, "place: batch_size=1 leaves no negatives"),
    ],
)
def test_a_stored_config_of_other_types_is_refused_by_place_and_setting(sections, said):
    with pytest.raises(ValueError, match=said):
        TrainConfig.from_plain(sections, "place")
