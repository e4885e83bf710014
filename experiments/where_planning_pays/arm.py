"""The arm of Gymnasium's Pusher, moved by MuJoCo: systems of `where_planning_pays`.

Four joints move, the wrist is locked; nothing has limits, and nothing collides. A torque is held for HOLD of MuJoCo's
steps, so that a step of the planner is 0.05 seconds. The tip has to come to rest at a target.

A state is the tip's distance to its target (3), the speeds of the joints (4) and their angles from the middle (4). The
planner's state is the first seven. The planner linearises the arm near rest with these angles, by MuJoCo's own finite
differences, anew at each step.
"""

from __future__ import annotations

from functools import cache, cached_property
from importlib.resources import files
from typing import Any, ClassVar, NamedTuple
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor

from experiments.where_planning_pays import planner
from experiments.where_planning_pays.planner import Ranges, Systems
from ttcnet.extras import require

ASSET, HOLD, JOINTS, KNOWN = "envs/mujoco/assets/pusher_v5.xml", 5, 4, 7
MOVES = ("r_shoulder_pan_joint", "r_shoulder_lift_joint", "r_upper_arm_roll_joint", "r_elbow_flex_joint")
PARTS = {"upper arm": slice(3, 5), "forearm": slice(5, 8), "hand": slice(8, 11)}  # MuJoCo's bodies
MIDDLE = np.array([-0.3, 0.45, 0.1, -1.2])  # angles
SPREAD = torch.tensor(3 * [0.15] + 4 * [0.5] + 4 * [0.5], dtype=torch.float64)  # of states in demonstrations
SHOWN = torch.tensor(4 * [0.16] + 4 * [0.44], dtype=torch.float64)  # of the cosines and sines of these angles
FAST, FAR = 20.0, 2.0  # of speeds and distances: beyond one of these an episode is over
SMALL = 1e-6  # of finite differences
CALIBRATION = 4096, 10**9  # systems and a seed: how much entries of matrices vary
RANGES: Ranges = {  # masses and dampings are multiples of Gymnasium's
    "masses": (2, 0.5, 2.0), "hand": (1, 0.5, 8.0), "damping": (JOINTS, 0.3, 3.0),
    "q distance": (3, 10.0, 160.0), "q speed": (JOINTS, 0.1, 1.6), "r": (JOINTS, 0.25, 4.0),
}  # fmt: skip
HEAVIER: Ranges = {**RANGES, "masses": (2, 2.0, 3.0), "hand": (1, 8.0, 16.0)}
KEENER: Ranges = {**RANGES, "q distance": (3, 160.0, 320.0), "r": (JOINTS, 0.125, 0.25)}
WEIGHTS = "weights"


class Model(NamedTuple):
    """MuJoCo, its model and data, and the original values of the model."""

    mujoco: Any
    model: Any
    data: Any
    mass: Any
    inertia: Any
    damping: Any
    tip: int


@cache
def read() -> Model:
    """Gymnasium's file, without the joints that are locked, limits and collisions."""
    mujoco, _ = require("mujoco", "mujoco", "The arm"), require("gymnasium", "mujoco", "The arm")
    root = ElementTree.fromstring((files("gymnasium") / ASSET).read_text())
    for parent in list(root.iter()):
        for child in list(parent):
            joint = child.get({"joint": "name", "motor": "joint"}.get(child.tag, ""))
            if joint and joint not in MOVES:
                parent.remove(child)
    model = mujoco.MjModel.from_xml_string(ElementTree.tostring(root, encoding="unicode"))
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT | mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
    model.actuator_ctrllimited[:] = 0
    plain = (model.body_mass.copy(), model.body_inertia.copy(), model.dof_damping.copy())
    return Model(mujoco, model, mujoco.MjData(model), *plain, model.body("tips_arm").id)


class Arm:
    """Many arms, one after another in the same model.

    Args:
        matrices: whether tokens tell A and B; else they tell angles, masses and dampings.
        axes: whether joints turn about any axes, drawn anew for every arm; else about Gymnasium's.
    """

    KINDS: ClassVar[dict[str, Ranges]] = {"seen": RANGES, "held out": HEAVIER, WEIGHTS: KEENER}

    def __init__(self, matrices: bool, axes: bool = False) -> None:
        self.matrices, self.axes = matrices, axes
        self._last: tuple[Any, Any] = None, None

    def draw(self, count: int, seed: int, kind: str = "seen") -> tuple[Systems, Tensor]:
        """Systems and states; the same for a seed on every machine."""
        systems, states = planner.draw(self.KINDS[kind], SPREAD, count, seed)
        if not self.axes:
            return systems, states
        random = torch.Generator().manual_seed(seed + 500)
        axes = torch.randn(count, JOINTS, 3, generator=random, dtype=torch.float64)
        axes = axes / axes.norm(dim=-1, keepdim=True)
        return systems._replace(physics=systems.physics | {"axes": axes.flatten(1)}), states

    def features(self, systems: Systems, states: Tensor) -> Tensor:
        """Tokens: all that the planner knows but its horizon."""
        known, angles = states.split([KNOWN, JOINTS], -1)
        if self.matrices:
            middle, spread, vary = self._entries
            entries = torch.cat([x.flatten(-2) for x in self.linear(systems, states)], -1)[..., vary]
            more, spread = (entries - middle) / spread, torch.ones_like(spread)
            ranges: Ranges = {name: RANGES[name] for name in RANGES if name == "r" or name.startswith("q")}
            systems = systems._replace(physics={})
        else:
            middle = torch.exp(-SPREAD[KNOWN:].square() / 2)  # of the cosine of a normal angle
            more, spread, ranges = torch.cat([torch.cos(angles) - middle, torch.sin(angles)], -1), SHOWN, RANGES
        return planner.features(ranges, torch.cat([SPREAD[:KNOWN], spread]), systems, torch.cat([known, more], -1))

    @cached_property
    def _entries(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of the entries of A and B that vary: mean, deviation and place."""
        entries = torch.cat([x.flatten(1) for x in self.linear(*self.draw(*CALIBRATION))], 1)
        vary = (entries.std(0) > 1e-9).nonzero().squeeze(1)
        return entries.mean(0)[vary], entries.std(0)[vary], vary

    def linear(self, systems: Systems, states: Tensor) -> tuple[Tensor, Tensor]:
        """A (..., N, 7, 7) and B (..., N, 7, 4): `step` near rest with the angles of the states. The last
        result is kept for a second call with the same states."""
        asked, found = self._last
        if asked is None or asked[0] is not systems or asked[1] is not states:
            arms, lead = self._arms(systems, states), states.shape[:-1]
            A, B = np.empty((len(arms), KNOWN, KNOWN)), np.empty((len(arms), KNOWN, JOINTS))
            for place, angles in enumerate(states[..., KNOWN:].flatten(0, -2).numpy()):
                self._become(arms[place])
                A[place], B[place] = _linear(angles)
            found = torch.from_numpy(A).unflatten(0, lead), torch.from_numpy(B).unflatten(0, lead)
            self._last = (systems, states), found
        return found

    def step(self, systems: Systems, states: Tensor, u: Tensor) -> Tensor:
        """States (..., N, 11) after torques (..., N, 4)."""
        arms, new = self._arms(systems, states), states.flatten(0, -2).numpy().copy()
        for place, torques in enumerate(u.flatten(0, -2).numpy()):
            self._become(arms[place])
            _step(new[place], torques)
        return torch.from_numpy(new).view(states.shape)

    def over(self, states: Tensor) -> Tensor:
        """Whether a joint turns too fast, or the tip is far off."""
        far, fast = states[..., :3].abs() > FAR, states[..., 3:KNOWN].abs() > FAST
        return far.any(-1) | fast.any(-1)

    def _arms(self, systems: Systems, states: Tensor) -> Any:
        """The quantities of every state's arm, one a row."""
        return torch.cat(list(systems.physics.values()), 1).expand(*states.shape[:-1], -1).flatten(0, -2).numpy()

    def _become(self, quantities: Any) -> None:
        """MuJoCo's model becomes this arm."""
        arm = read()
        for times, part in zip(quantities[:3], PARTS.values(), strict=True):
            arm.model.body_mass[part], arm.model.body_inertia[part] = times * arm.mass[part], times * arm.inertia[part]
        arm.model.dof_damping[:] = quantities[3:7] * arm.damping
        if self.axes:
            arm.model.jnt_axis[:] = quantities[7:].reshape(JOINTS, 3)


def _linear(angles: Any) -> tuple[Any, Any]:
    """A and B of the model's present arm, in steps of the planner."""
    mujoco, model, data, *_, tip = read()
    data.qpos[:], data.qvel[:], data.ctrl[:] = MIDDLE + angles, 0, 0
    once, push = np.empty((2 * JOINTS, 2 * JOINTS)), np.empty((2 * JOINTS, JOINTS))
    mujoco.mjd_transitionFD(model, data, SMALL, True, once, push, None, None)
    of_joints, reach = once, push
    for _ in range(HOLD - 1):
        of_joints, reach = once @ of_joints, once @ reach + push
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    jacobian = np.empty((3, JOINTS))  # of the tip by the angles
    mujoco.mj_jacBody(model, data, jacobian, None, tip)
    A = np.eye(KNOWN)
    A[:3, 3:], A[3:, 3:] = jacobian @ of_joints[:JOINTS, JOINTS:], of_joints[JOINTS:, JOINTS:]
    return A, np.concatenate([jacobian @ reach[:JOINTS], reach[JOINTS:]])


def _step(state: Any, torques: Any) -> None:
    """The state after a move of the model's present arm."""
    mujoco, model, data, *_, tip = read()
    data.qpos[:], data.qvel[:], data.ctrl[:] = MIDDLE + state[KNOWN:], state[3:KNOWN], torques
    mujoco.mj_kinematics(model, data)
    before = data.xpos[tip].copy()
    mujoco.mj_step(model, data, HOLD)
    mujoco.mj_kinematics(model, data)
    state[:3] += data.xpos[tip] - before
    state[3:KNOWN], state[KNOWN:] = data.qvel, data.qpos - MIDDLE
