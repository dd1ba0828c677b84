#!/bin/bash
# Unpacks what pack_warp.py packed into a Python environment. Usage: unpack_warp.sh PART... DEST
# Parts may come in several calls: they are kept in $WARP_PARTS (default /opt/warp_parts), and unpacked, once, when all are there.
# DEST/env.sh then sets RLPROF_WARP_PYTHON and WARP_CACHE_PATH. PYTHON (default python3): a Python 3.12 that has numpy.
set -euo pipefail
[ $# -ge 2 ] || { sed -n 2,4p "$0"; exit 2; }
dest=${*: -1}; parts=${WARP_PARTS:-/opt/warp_parts}; python=${PYTHON:-python3}
mkdir -p "$parts"
for part in "${@:1:$#-1}"; do
  [ -f "$part" ] || { echo "unpack_warp: no file $part" >&2; exit 1; }
  case $part in *.tar.xz.*-of-*) ;; *) echo "unpack_warp: $part is no part of pack_warp.py" >&2; exit 1;; esac
  [ "$part" -ef "$parts/${part##*/}" ] || cp "$part" "$parts/"
done
mkdir -p "$dest/bin"; dest=$(cd "$dest" && pwd)
"$python" - "$parts" "$dest" <<'PYTHON'
import lzma, struct, sys, sysconfig, tarfile, time
from pathlib import Path

parts, dest = Path(sys.argv[1]), Path(sys.argv[2])
site = dest / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
for folder in (site, dest / "kernels"):
    folder.mkdir(parents=True, exist_ok=True)
if not (dest / "bin" / "python").exists():
    base = Path(sys.executable).resolve()
    (dest / "bin" / "python").symlink_to(base)
    (dest / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
# numpy comes from the Python that runs this; what is unpacked here goes first
(site / "zz_rest.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
(dest / "env.sh").write_text(
    f"export RLPROF_WARP_PYTHON={dest}/bin/python WARP_CACHE_PATH={dest}/kernels\n"
)


class Joined:
    """The parts, one after the other."""

    def __init__(self, files):
        self.files, self.now = list(files), None

    def read(self, size=-1):
        while True:
            if self.now is None:
                if not self.files:
                    return b""
                self.now = self.files.pop(0).open("rb")
            if data := self.now.read(size):
                return data
            self.now = None


def put_back(site):
    """GPU code of all architectures, where code of one was left."""
    with (site / "warp.so.rest").open("rb") as rest, (site / "warp/bin/warp.so").open("r+b") as library:
        while head := rest.read(16):
            start, size = struct.unpack("<QQ", head)
            library.seek(start)
            library.write(rest.read(size))


for name, where in (("warp", site), ("rest", site), ("kernels", dest / "kernels")):
    found = sorted(parts.glob(f"{name}.tar.xz.*-of-*"), key=lambda p: int(p.name.split(".")[-1].split("-")[0]))
    if not found:
        continue
    count = int(found[0].name.rsplit("-", 1)[1])
    if len(found) < count:
        print(f"unpack_warp: {len(found)} of {count} parts of {name} are there: bring the others in a further call")
        continue
    stamp, now = dest / f".{name}.unpacked", " ".join(f"{p.name}:{p.stat().st_size}" for p in found)
    if stamp.exists() and stamp.read_text() == now:
        print(f"unpack_warp: {name} is there already")
        continue
    began = time.monotonic()
    with lzma.LZMAFile(Joined(found)) as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
        tar.extractall(where, filter="data")
    if name == "warp":
        (dest / ".rest.unpacked").unlink(missing_ok=True)
    if name == "rest":
        put_back(site)
    stamp.write_text(now)
    print(f"unpack_warp: {name} unpacked in {time.monotonic() - began:.1f} s")
PYTHON
if ls "$dest"/lib/python3.*/site-packages/warp/__init__.py >/dev/null 2>&1; then
  env -u PYTHONPATH -u MUJOCO_GL "$dest/bin/python" -c '
import warp, mujoco, mujoco_warp, numpy
warp.init()
print("unpack_warp: warp", warp.__version__, "mujoco", mujoco.__version__, "numpy", numpy.__version__, "GPU", warp.is_cuda_available())'
fi
