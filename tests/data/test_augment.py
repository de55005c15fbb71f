"""The recipes: how often, how strong, in which order; and that a view depends on its key and place alone."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from npmatch.compiled import VIEWS
from npmatch.data import augment, operations
from npmatch.data.augment import RECIPES, RecipeName
from npmatch.errors import UserError
from npmatch.functional import chance
from tests.data.test_operations import PILLOW, by_pillow, differing, random_images, tensor

KEY = chance.key(0, 0, 2)
PLACES = torch.arange(10_000)
SHIFT = partial(augment.weak, flip=True, padding=4)


def draws(name: RecipeName, number: int = 0) -> tuple[np.ndarray, np.ndarray]:
    operation_N, magnitude_N = augment.drawn(KEY + number, PLACES, RECIPES[name], (32, 32))
    return operation_N.numpy(), magnitude_N.numpy()


def of(operation: str, name: RecipeName) -> np.ndarray:
    operation_N, magnitude_N = draws(name)
    return magnitude_N[operation_N == operations.OPERATIONS.index(operation)]


FIXMATCH: dict[str, Any] = {  # its main code; FixMatch's mid-gray is 127
    "num_ops": 2,
    "probability": 0.5,
    "levels": (1, 9, 10),  # M = 10 is excluded
    "enhance": (0.1, 1.9),
    "posterize": (4.9, 0.9),  # cut to a whole number this is 4 - int(4m / 10)
    "solarize": (256.0, 0.0),
    "rotate": (0.0, 30.0),
    "shear": (0.0, 0.3),
    "translate": (0.0, 10.0),
    "translate_by_share": False,
    "random_sign": True,
    "fill": 127,
    "cutout_side": 16,
    "cutout_color": (127, 127, 127),
    "before_crop": False,
    "color": True,
    "geometry": True,
    "cutout": True,
}
TABLE: dict[RecipeName, dict[str, Any]] = {  # spec 1.4
    "ra_torchssl": {
        "num_ops": 3,
        "probability": 1.0,
        "levels": (0, 65535, 65536),  # fine enough for a real number
        "enhance": (0.05, 0.95),
        "posterize": (4.0, 8.0),
        "solarize": (0.0, 256.0),
        "rotate": (-30.0, 30.0),
        "shear": (-0.3, 0.3),
        "translate": (-0.3, 0.3),
        "translate_by_share": True,
        "random_sign": False,
        "fill": 0,
        "cutout_side": None,
        "cutout_color": (125, 123, 114),
        "before_crop": True,
        "color": True,
        "geometry": True,
        "cutout": True,
    },
    "ra_fixmatch": FIXMATCH,
    "ra_max": FIXMATCH
    | {
        "levels": (10, 10, 10),
        "posterize": (0.0, 4.0),
        "solarize": (0.0, 256.0),  # at full level: no change
        "fill": 128,
        "cutout_color": (128, 128, 128),
    },
}


def test_the_recipes_are_those_of_the_table() -> None:
    assert {name: asdict(recipe) for name, recipe in RECIPES.items()} == TABLE
    for name in RECIPES:
        assert asdict(augment.recipe(name)) == TABLE[name]
        changed = {"num_ops": 5, "color": False, "geometry": False, "cutout": False}
        assert asdict(augment.recipe(name, **changed)) == TABLE[name] | changed
        for switch in ("color", "geometry", "cutout"):
            assert asdict(augment.recipe(name, **{switch: False})) == TABLE[name] | {switch: False}


def test_operations_are_drawn_evenly_and_apart_in_every_round() -> None:
    rounds = np.stack([draws("ra_torchssl", number)[0] for number in range(3)])
    sigma = (10_000 / 14 * 13 / 14) ** 0.5
    for drawn in rounds:
        assert np.abs(np.bincount(drawn, minlength=14) - 10_000 / 14).max() < 3 * sigma
    assert abs((rounds[0] == rounds[1]).sum() - 10_000 / 14) < 3 * sigma
    assert abs((rounds == operations.IDENTITY).all(0).sum() - 10_000 / 14**3) < 3 * (10_000 / 14**3) ** 0.5


@pytest.mark.parametrize("name", ["ra_fixmatch", "ra_max"])
def test_with_half_the_probability_a_quarter_of_the_images_has_no_operation(name: RecipeName) -> None:
    idle = [draws(name, number)[0] == operations.IDENTITY for number in range(2)]
    expected = (0.5 + 0.5 / 14) ** 2  # .25, and the identity
    assert abs((idle[0] & idle[1]).mean() - expected) < 3 * (expected * (1 - expected) / 10_000) ** 0.5


def test_torchssl_magnitudes_fill_their_ranges_and_only_weaken() -> None:
    ranges = {"brightness": (0.05, 0.95), "sharpness": (0.05, 0.95), "rotate": (-30, 30), "shear_x": (-0.3, 0.3)}
    ranges |= {"translate_x": (-9.6, 9.6), "translate_y": (-9.6, 9.6), "solarize": (0, 256), "posterize": (4, 8)}
    for operation, (low, high) in ranges.items():
        drawn = of(operation, "ra_torchssl")
        assert low - 1e-7 <= drawn.min() and drawn.max() < high
        assert drawn.min() < low + 0.02 * (high - low) and drawn.max() > high - 0.02 * (high - low)
        assert abs(drawn.mean() - (low + high) / 2) < 3.5 * (high - low) / (12 * len(drawn)) ** 0.5
    assert set(of("posterize", "ra_torchssl").astype(int)) == {4, 5, 6, 7}


def test_fixmatch_magnitudes_are_the_codes_own_numbers() -> None:
    levels = range(1, 10)
    signed = [sign * level for level in levels for sign in (-1, 1)]
    assert set(of("color", "ra_fixmatch")) == {np.float32(0.1 + 1.8 * m / 10) for m in levels}
    assert set(of("posterize", "ra_fixmatch").astype(int)) == {4 - int(4 * m / 10) for m in levels}
    assert set(np.ceil(of("solarize", "ra_fixmatch"))) == {256 - int(256 * m / 10) for m in levels}
    assert set(of("rotate", "ra_fixmatch")) == {np.float32(3 * m) for m in signed}
    assert set(of("shear_y", "ra_fixmatch")) == {np.float32(0.3 * m / 10) for m in signed}
    assert set(of("translate_x", "ra_fixmatch")) == set(signed)


def test_the_full_level_is_fixed_and_its_solarize_does_nothing() -> None:
    assert set(of("contrast", "ra_max")) == {np.float32(1.9)}
    assert set(of("posterize", "ra_max")) == {4.0} and set(of("solarize", "ra_max")) == {256.0}
    assert set(of("rotate", "ra_max")) == {-30.0, 30.0} and set(of("translate_y", "ra_max")) == {-10.0, 10.0}


def test_random_cutout_is_torchssls_procedure() -> None:
    images = random_images(10_000, 32, 24, 3)
    x, y, share = (chance.bits(chance.scramble(KEY + 2), PLACES, 3) >> 39).numpy().T / 2**24

    def cut(image: Image.Image, i: int) -> Image.Image:
        width, height = image.size
        side = 0.5 * float(share[i]) * width
        x0 = int(max(0, float(x[i]) * width - side / 2))
        y0 = int(max(0, float(y[i]) * height - side / 2))
        ImageDraw.Draw(image).rectangle((x0, y0, min(width, x0 + side), min(height, y0 + side)), (125, 123, 114))
        return image

    box_N4 = augment.cutout_box(KEY, PLACES, None, (32, 24))
    assert differing(operations.cutout(tensor(images), box_N4, (125, 123, 114)), by_pillow(images, cut)) == 0
    box_N4 = augment.cutout_box(KEY, PLACES, 16, (32, 24))
    assert torch.equal(box_N4[:, 0] + 8, torch.from_numpy(np.floor(x * 24).astype(np.int64)))
    assert (box_N4[:, 2:] - box_N4[:, :2] == 15).all()


@pytest.mark.parametrize("name", RECIPES)
def test_a_strong_view_is_the_recipe_by_pillow(name: RecipeName) -> None:
    recipe = RECIPES[name]
    images = random_images(1000, 32, 32, 3)
    places = PLACES[:1000]
    rounds = [augment.drawn(KEY + number, places, recipe, (32, 32)) for number in range(recipe.num_ops)]
    box = augment.cutout_box(KEY, places, recipe.cutout_side, (32, 32)).clamp(-1, 33).tolist()

    def change(image: Image.Image, i: int) -> Image.Image:
        for operation_N, magnitude_N in rounds:
            operation = operations.OPERATIONS[int(operation_N[i])]
            inside = Image.new("L", image.size, 255)
            if operation.startswith(("rotate", "shear", "translate")):
                inside = PILLOW[operation](inside, float(magnitude_N[i]))
            image = PILLOW[operation](image, float(magnitude_N[i])).copy()
            image.paste((recipe.fill,) * 3, mask=inside.point(lambda level: 255 - level))
        left, top, right, bottom = box[i]
        if right >= 0 and bottom >= 0:
            ImageDraw.Draw(image).rectangle((max(left, 0), max(top, 0), right, bottom), recipe.cutout_color)
        return image

    def cropped(views: np.ndarray) -> np.ndarray:
        return SHIFT(tensor(views), KEY, places).permute(0, 2, 3, 1).numpy()

    theirs = cropped(by_pillow(images, change)) if recipe.before_crop else by_pillow(cropped(images), change)
    ours = augment.strong(tensor(images), KEY, places, recipe=recipe, crop=SHIFT)
    assert differing(ours, theirs) == 0


@pytest.mark.parametrize("crop", [SHIFT, partial(augment.resized_crop, size=16)])
@pytest.mark.parametrize("name", RECIPES)
def test_a_view_depends_on_key_and_place_alone(name: RecipeName, crop: augment.Crop) -> None:
    images = tensor(random_images(100, 32, 32, 3))
    view = partial(augment.strong, recipe=RECIPES[name], crop=crop)
    whole = view(images, KEY, PLACES[:100])
    halves = [view(images[part], KEY, PLACES[:100][part]) for part in (slice(0, 37), slice(37, 100))]
    assert torch.equal(whole, torch.cat(halves)) and torch.equal(whole, view(images, KEY, PLACES[:100]))
    for other in (view(images, chance.key(0, 2, 2), PLACES[:100]), view(images, KEY, PLACES[100:200])):
        assert (other != whole).flatten(1).any(1).float().mean() > 0.8


def test_kinds_of_operations_can_be_left_out() -> None:
    geometric = set(range(1, 6))

    def used(**switches: bool) -> set[int]:
        recipe = augment.recipe("ra_torchssl", **switches)
        return set(augment.drawn(KEY, PLACES, recipe, (32, 32))[0].tolist())

    assert used(color=False) == {0} | geometric and used(geometry=False) == set(range(14)) - geometric
    assert used(color=False, geometry=False) == {0}
    images = tensor(random_images(100, 32, 32, 3))
    bare = augment.recipe("ra_torchssl", num_ops=0, cutout=False)
    plain = augment.strong(images, KEY, PLACES[:100], recipe=bare, crop=partial(augment.weak, flip=False, padding=0))
    assert torch.equal(plain, images)


def test_a_weak_view_is_mirrored_half_the_time_and_shifted_evenly() -> None:
    ramp = (16 * torch.arange(8)[:, None] + torch.arange(8)).to(torch.uint8).expand(10_000, 1, 8, 8)
    views = augment.weak(ramp, KEY, PLACES, flip=True, padding=2)[:, 0].to(torch.int64)
    mirrored = views[:, 0, 4] < views[:, 0, 3]
    assert abs(mirrored.float().mean() - 0.5) < 0.015
    shift = views[:, 3, 3] // 16 - 1  # 0 to 4
    assert np.abs(np.bincount(shift.numpy(), minlength=5) - 2000).max() < 3 * 40
    assert not (augment.weak(ramp, KEY, PLACES, flip=False, padding=2)[:, 0, 0, 4] < 4).all()
    smaller = augment.weak(ramp, KEY, PLACES, flip=False, padding=1, size=(5, 6))
    assert smaller.shape == (10_000, 1, 5, 6) and smaller.min() == 0 and smaller.max() == 16 * 7 + 7
    with pytest.raises(UserError, match="12x12"):
        augment.weak(ramp, KEY, PLACES, flip=False, padding=1, size=(12, 12))


def test_a_shift_reaches_both_edges_in_both_directions() -> None:
    """Two pixels of padding leave 5 x 5 places, drawn evenly; the one in the middle changes nothing."""
    ramp = (16 * torch.arange(8)[:, None] + torch.arange(8)).to(torch.uint8).expand(10_000, 1, 8, 8)
    views = augment.weak(ramp, KEY, PLACES, flip=False, padding=2)[:, 0].to(torch.int64)
    row, column = views[:, 3, 3] // 16 - 1, views[:, 3, 3] % 16 - 1  # 0 to 4
    assert np.abs(np.bincount((5 * row + column).numpy(), minlength=25) - 400).max() < 4 * (400 * 24 / 25) ** 0.5
    assert torch.equal(views[(row == 2) & (column == 2)][0], ramp[0, 0].to(torch.int64))
    far = views[(row == 2) & (column == 4)][0, 0]
    assert far.tolist() == [2, 3, 4, 5, 6, 7, 6, 5], "the right edge, and then reflected"
    assert views[(row == 2) & (column == 0)][0, 0].tolist() == [2, 1, 0, 1, 2, 3, 4, 5]


def test_resized_crops_cover_the_asked_area_at_mild_ratios() -> None:
    across = torch.arange(200).to(torch.uint8).expand(2000, 1, 160, 200)
    down = torch.arange(160)[:, None].to(torch.uint8).expand(2000, 1, 160, 200)
    crop = partial(augment.resized_crop, key=KEY, places_N=PLACES[:2000], size=20, min_area=0.2)
    x, y = crop(across)[:, 0].to(torch.float32), crop(down)[:, 0].to(torch.float32)
    assert (x.std(1) == 0).all() and (y.std(2) == 0).all()
    width, height = (x[:, 0, -1] - x[:, 0, 0]) * 20 / 19, (y[:, -1, 0] - y[:, 0, 0]) * 20 / 19
    assert abs((width < 0).float().mean() - 0.5) < 0.035 and (height > 0).all()
    area, ratio = width.abs() * height / (160 * 200), width.abs() / height
    assert 0.19 < area.min() < 0.23 and area.max() < 1.02 and 0.45 < area.median() < 0.6  # large wide parts do not fit
    assert 0.72 < ratio.min() < 0.77 and 1.30 < ratio.max() < 1.37
    flat = torch.full((4, 3, 30, 40), 77, dtype=torch.uint8)
    assert (augment.resized_crop(flat, KEY, PLACES[:4], size=12) == 77).all()


def test_center_crop_and_the_two_kinds_of_crop() -> None:
    images = tensor(random_images(8, 32, 32, 3))
    assert torch.equal(augment.center_crop(images, 20), images[:, :, 6:26, 6:26])
    with pytest.raises(UserError, match="40x40"):
        augment.center_crop(images, 40)
    crop = partial(augment.crop_and_flip, images, KEY, PLACES[:8], size=32, padding=4, min_area=0.5, flip=True)
    assert torch.equal(crop(kind="shift"), SHIFT(images, KEY, PLACES[:8]))
    expected = augment.resized_crop(images, KEY, PLACES[:8], size=32, min_area=0.5)
    assert torch.equal(crop(kind="resized"), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RECIPES)
def test_compiled_as_one_graph_it_makes_the_same_pixels(name: RecipeName) -> None:
    images, places = tensor(random_images(500, 32, 32, 3)), PLACES[:500]

    def view(images: Tensor, key: Tensor, places_N: Tensor) -> Tensor:
        return augment.strong(images, key, places_N, recipe=RECIPES[name], crop=SHIFT)

    compiled = torch.compile(view, fullgraph=True, options=VIEWS)
    for step in range(3):
        key = chance.key(0, step, 2)
        assert torch.equal(compiled(images, key, places), view(images, key, places))
