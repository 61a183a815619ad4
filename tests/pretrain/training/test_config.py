import json
from dataclasses import fields
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
import torch

from flatnce.pretrain import PRESETS, TrainConfig, preset
from flatnce.pretrain.data import CATALOG
from flatnce.pretrain.training.config import refuse_unused, starting_config
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
        ({"lr": 0.1}, "'lr' is not a setting of a run; did you mean 'rate'"),
        ({"learning_rate": 0.1}, "did you mean 'rate'"),
        ({"bs": 8}, "did you mean 'batch_size'"),
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
        (
            {"warmup_epochs": float("inf")},
            "^warmup_epochs=inf must be .* number, or 0$",
        ),
        ({"weight_decay": float("inf")}, "^weight_decay=inf must be a positive finite"),
        ({"weight_decay": -0.1}, r"^weight_decay=-0\.1 must be"),
        ({"batch_size": "32"}, "^batch_size='32' has type str; give int$"),
        ({"epochs": 2.5}, r"^epochs=2\.5 has type float; give int$"),
        ({"epochs": None}, "^epochs=None has type NoneType; give int$"),
        ({"seed": True}, "^seed=True has type bool; give int$"),
        ({"rate": "0.1"}, r"^rate='0\.1' has type str; give float$"),
        ({"pretrained": "yes"}, "^pretrained='yes' has type str; give bool$"),
        ({"blur": "on"}, "^blur='on' has type str; give float or 'auto'$"),
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


def test_values_of_subclasses_become_plain_and_a_path_of_images_is_one(tmp_path):
    class Rate(float):
        pass

    chosen = Enum("Optimizer", {"ADAMW": "adamw"}, type=str).ADAMW
    config = TrainConfig().override(rate=Rate(0.1), optimizer=chosen).optimizer
    assert [(type(one), one) for one in (config.rate, config.optimizer)] == [
        (float, 0.1),
        (str, "adamw"),
    ]
    for given, data in (("photos", "./photos"), (tmp_path, str(tmp_path))):
        assert TrainConfig().override(data=Path(given)).data.data == data
        assert starting_config(Path(given)) == preset(data)


@pytest.mark.parametrize(
    "settings, ends",
    [
        ({}, "such as ess=0.075; give that too, or leave it out"),
        ({"objective": "siglip"}, ": leave it out"),
        ({"temperature_end": 0.5}, ": leave it out"),
        ({"learn_temperature": True}, ": leave it out"),
    ],
)
def test_an_ess_target_is_not_proposed_where_it_would_be_refused(settings, ends):
    config = TrainConfig().override(ess_rate=0.1, **settings)
    with pytest.raises(ValueError, match=r"^ess_rate=0\.1 has no effect here.*" + ends):
        refuse_unused([config], ["ess_rate"])
    with pytest.raises(ValueError, match="; give that too, or leave it out"):
        refuse_unused([config, TrainConfig()], ["ess_rate"])


@pytest.mark.parametrize(
    "layers, unused", [(0, "head_hidden"), (0, "head_out"), (1, "head_hidden"), (1, "head_norm")]
)
def test_settings_of_layers_that_a_head_does_not_have_are_refused(layers, unused):
    config = TrainConfig().override(head_layers=layers)
    with pytest.raises(ValueError, match=f"^{unused}=.* has no effect here, it is for a head "):
        refuse_unused([config], ["head_layers", unused])
    refuse_unused([config.override(head_layers=2)], ["head_layers", unused])


@pytest.mark.parametrize("name", ["decode", "decode_size", "skip_unreadable", "stream", "stem"])
def test_settings_of_what_own_code_does_are_refused(name):
    config = TrainConfig().override(data="mine:rows", backbone="mine:net")
    with pytest.raises(ValueError, match=f"^{name}=.* has no effect here, it is for .*: leave it"):
        refuse_unused([config], [name])
    refuse_unused([config, TrainConfig()], [name])


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
