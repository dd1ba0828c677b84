"""The robot of `mujoco_arm`: a model of primitive geometry written as MJCF, and its inverse kinematics.

A four-joint arm (yaw, shoulder, elbow, wrist) carries a suction cup that always points down. A cube lies on a
table, with two plates beside it. Suction is an adhesion actuator, as MuJoCo models it.
"""

from __future__ import annotations

import numpy as np

from rlprof.workloads.embodied.contracts import Floats

#: Lengths in metres.
SHOULDER_HEIGHT_M = 0.2
UPPER_M = 0.25
FORE_M = 0.25
TOOL_M = 0.08
CUBE_HALF_M = 0.02
PLATE_HEIGHT_M = 0.03
PLATE_RADIUS_M = 0.05
#: Centres of the plates: (x, y).
PLATES_M = ((0.32, 0.13), (0.32, -0.13))
#: Where the tip of the tool may go: least and most x, y, z.
WORKSPACE_M = ((0.18, 0.42), (-0.18, 0.18), (0.02, 0.2))
HOME_M = (0.28, 0.0, 0.14)
#: Where the cube may start.
START_M = ((0.24, 0.36), (-0.05, 0.05))
TIMESTEP_S = 0.008
SUBSTEPS = 5
#: Sensors, in this order, three numbers each; then the touch of the cup, one.
SENSORS = 10


def mjcf(image: int = 128) -> str:
    """Return the model as MJCF.

    Parameters
    ----------
    image : int
        Largest height and width of camera images that can be made, in pixels.
    """
    plates = "\n".join(
        f'<geom name="plate{k}" type="cylinder" size="{PLATE_RADIUS_M} {PLATE_HEIGHT_M / 2}"'
        f' pos="{x} {y} {PLATE_HEIGHT_M / 2}" rgba="{0.2 + 0.5 * k} 0.6 {0.7 - 0.5 * k} 1"/>'
        for k, (x, y) in enumerate(PLATES_M)
    )
    return f"""
<mujoco model="mujoco_arm">
  <option timestep="{TIMESTEP_S}" integrator="implicitfast" iterations="20" ls_iterations="10"/>
  <visual><global offwidth="{image}" offheight="{image}"/><quality shadowsize="0" offsamples="0"/></visual>
  <default>
    <geom condim="3" friction="1 0.01 0.001"/>
    <joint damping="0.5" armature="0.05"/>
    <default class="arm"><geom contype="0" conaffinity="0" density="500" rgba="0.6 0.6 0.65 1"/></default>
  </default>
  <worldbody>
    <light pos="0.3 0 1.5" dir="0 0 -1" castshadow="false"/>
    <camera name="front" pos="0.95 0 0.55" xyaxes="0 1 0 -0.6 0 0.8"/>
    <geom name="table" type="plane" size="1 1 0.1" rgba="0.85 0.8 0.7 1"/>
    {plates}
    <body name="turret" pos="0 0 {SHOULDER_HEIGHT_M}" gravcomp="1" childclass="arm">
      <joint name="yaw" axis="0 0 1"/>
      <geom type="cylinder" size="0.04 0.05"/>
      <body name="upper" gravcomp="1">
        <joint name="shoulder" axis="0 1 0"/>
        <geom type="capsule" size="0.025" fromto="0 0 0 {UPPER_M} 0 0"/>
        <body name="fore" pos="{UPPER_M} 0 0" gravcomp="1">
          <joint name="elbow" axis="0 1 0"/>
          <geom type="capsule" size="0.02" fromto="0 0 0 {FORE_M} 0 0"/>
          <body name="tool" pos="{FORE_M} 0 0" gravcomp="1">
            <joint name="wrist" axis="0 1 0"/>
            <geom type="capsule" size="0.012" fromto="0 0 0 0 0 -{TOOL_M - 0.02}"/>
            <camera name="hand" pos="0.05 0 0" euler="0 -0.35 0"/>
            <body name="cup" pos="0 0 -{TOOL_M - 0.005}" gravcomp="1">
              <geom name="cup" type="cylinder" size="0.015 0.005" contype="1" conaffinity="1" margin="0.012"
               gap="0.012" density="500" rgba="0.2 0.2 0.2 1"/>
              <site name="tip" pos="0 0 -0.005" size="0.016 0.016 0.016" rgba="0 0 0 0"/>
            </body>
          </body>
        </body>
      </body>
    </body>
    <body name="cube" pos="0.3 0 {CUBE_HALF_M}">
      <freejoint/>
      <geom name="cube" type="box" size="{CUBE_HALF_M} {CUBE_HALF_M} {CUBE_HALF_M}" density="800"
       rgba="0.9 0.3 0.2 1"/>
    </body>
  </worldbody>
  <actuator>
    <position name="yaw" joint="yaw" kp="150" kv="7"/>
    <position name="shoulder" joint="shoulder" kp="150" kv="7"/>
    <position name="elbow" joint="elbow" kp="150" kv="7"/>
    <position name="wrist" joint="wrist" kp="100" kv="5"/>
    <adhesion name="suction" body="cup" ctrlrange="0 1" gain="6"/>
  </actuator>
  <sensor>
    <framepos objtype="site" objname="tip"/>
    <framepos objtype="body" objname="cube"/>
    <framelinvel objtype="body" objname="cube"/>
    <touch site="tip"/>
  </sensor>
</mujoco>
"""


def joint_targets(tip: Floats) -> Floats:
    """Angles that put the tip of the tool, pointing down, to a place.

    Parameters
    ----------
    tip : ndarray, shape (..., 3)
        Places inside the workspace, in metres.

    Returns
    -------
    ndarray, shape (..., 4)
        Yaw, shoulder, elbow and wrist in radians; positive angles about y turn downwards.
    """
    x, y, z = tip[..., 0], tip[..., 1], tip[..., 2]
    yaw = np.arctan2(y, x)
    reach = np.hypot(x, y)
    rise = z + TOOL_M - SHOULDER_HEIGHT_M
    distance2 = reach**2 + rise**2
    # law of cosines; the elbow points up
    bend = np.arccos(np.clip((distance2 - UPPER_M**2 - FORE_M**2) / (2 * UPPER_M * FORE_M), -1, 1))
    shoulder = -(np.arctan2(rise, reach) + np.arctan2(FORE_M * np.sin(bend), UPPER_M + FORE_M * np.cos(bend)))
    return np.stack([yaw, shoulder, bend, -shoulder - bend], axis=-1)
