#!/bin/bash
# Everything that needs a GPU, one step after the other; each has a limit, and one that fails stops nothing.
# Usage: all.sh OUT PACKAGES [STEP...]   PACKAGES: folder of wheels, and of the libdw1 and libelf1 packages for nsys
# SECONDS_IN_ALL (default 530) ends it: a step that cannot begin in time is named and left out.
set -u
mkdir -p "$1"; out=$(cd "$1" && pwd); packages=$2; shift 2
steps=${*:-tests nsys_tests vla soak overhead decode rates memory nsys}
limit_all=${SECONDS_IN_ALL:-530}
here=$(cd "$(dirname "$0")/../.." && pwd)
if ls "$packages"/*.whl > /dev/null 2>&1; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site "$packages"/*.whl
fi
for f in "$packages"/*.deb; do [ -e "$f" ] && dpkg -x "$f" /tmp/dw; done
libraries=/tmp/dw/usr/lib/x86_64-linux-gnu
# a neutral place: a report of nsys holds the paths of what it ran
mkdir -p /opt/run /tmp/home; cp -r "$here/rlprof" "$here/benchmarks" "$here/tests" "$here/pyproject.toml" /opt/run/
cd /opt/run || exit 1
export PYTHONPATH=/opt/run:/tmp/site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 LD_LIBRARY_PATH="$libraries:${LD_LIBRARY_PATH:-}"
# and a Python there that finds the same packages, so that neither its own path nor PYTHONPATH is in a report
python3 - <<'PYTHON'
import os, sys, sysconfig
from pathlib import Path
prefix, base = Path("/opt/run"), Path(sys.executable).resolve()
site = prefix / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
site.mkdir(parents=True, exist_ok=True)
(prefix / "bin").mkdir(exist_ok=True)
(prefix / "bin" / "python3").unlink(missing_ok=True)
(prefix / "bin" / "python3").symlink_to(base)
(prefix / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
packages = sysconfig.get_path("purelib")
(site / "all.pth").write_text(os.environ["PYTHONPATH"].replace(":", "\n") + f"\nimport site; site.addsitedir({packages!r})\n")
PYTHON
clean() { env -i PATH=/opt/run/bin:/usr/bin:/bin HOME=/tmp/home LANG=C.UTF-8 LD_LIBRARY_PATH="$libraries" "$@"; }
step() { local name=$1 limit=$2 left began code; shift 2; case " $steps " in *" $name "*) ;; *) return;; esac
  left=$((limit_all - SECONDS)); if [ $left -lt 20 ]; then echo "== $name: LEFT OUT, no time"; return; fi
  [ "$limit" -gt $left ] && limit=$left
  echo "== $name"; began=$SECONDS; timeout -k 10 "$limit" "$@" > "$out/$name.log" 2>&1; code=$?
  tail -n "${LINES_SHOWN:-25}" "$out/$name.log" | cut -c1-400
  echo "== $name: code $code, $((SECONDS - began)) s, $SECONDS s in all"; }
vla() {
  # processes of its own only, and a host name that is nobody's: nsys notes the environment of all that it sees
  apart="unshare --fork --pid --mount-proc --uts"
  $apart true || { echo "VLA: no namespaces here"; apart=; }
  apart() { clean $apart python3 -c 'import os, socket, sys
sys.argv[1] and socket.sethostname("gpu-machine")
os.execvp(sys.argv[2], sys.argv[2:])' "$apart" "$@"; }
  nsys=$(python3 -c 'from benchmarks.gpu.common import find_nsys; print(find_nsys())')
  tables() { rm -rf /tmp/vla_tables; apart "$nsys" export --type parquetdir --force-overwrite true --output /tmp/vla_tables "$1" && [ -s /tmp/vla_tables/NVTX_EVENTS.parquet ]; }
  apart python3 -m rlprof capture --backend nsys --rate 2kHz --force -o /tmp/vla.rlprof -- python3 -m benchmarks.gpu.vla --iterations 2
  cp /tmp/vla.nsys-rep /tmp/as_taken.nsys-rep
  python3 -m benchmarks.gpu.private --overwrite-release /tmp/vla.nsys-rep
  tables /tmp/vla.nsys-rep || { echo "VLA: NOT READABLE with the kernel's release overwritten"; cp /tmp/as_taken.nsys-rep /tmp/vla.nsys-rep; tables /tmp/vla.nsys-rep; }
  apart "$nsys" export --type sqlite --force-overwrite true --output /tmp/vla.sqlite /tmp/vla.nsys-rep
  cp /tmp/vla.nsys-rep "$out/vla.nsys-rep"
  (cd /tmp && python3 -m zipfile -c "$out/vla_tables.zip" vla_tables/)
  ls -l /tmp/vla.sqlite "$out"/vla*
  python3 -m benchmarks.gpu.private --tables /tmp/vla_tables /tmp/vla.nsys-rep /tmp/vla.sqlite || echo "VLA: NOT TO BE SHIPPED AS IT IS: see FOUND above"
  [ "$(stat -c %s "$out/vla.nsys-rep")" -lt 5000000 ] || echo "VLA: LARGER THAN 5 MB"
}
# tests that read no counters run beside the soak
beside() {
  python3 -m benchmarks.gpu.sampler_facts --out "$out/soak" --only soak --soak 180 & soak=$!
  sleep 12
  files=$(grep -rl --include='test_*.py' 'mark\.gpu' tests | grep -v tests/capture/samplers | grep -v test_nsys_session)
  timeout -k 10 150 python3 -m pytest -q -p no:cacheprovider -m gpu -rs --durations=5 --continue-on-collection-errors $files; code=$?
  echo "BESIDE: tests ended with $code (5: there were none)"
  wait $soak
}
export -f vla clean beside; export out libraries
LINES_SHOWN=40 step tests 120 python3 -m pytest -q -p no:cacheprovider -m gpu -rs --durations=8 tests/capture/samplers/test_gpu.py
step nsys_tests 60 python3 -m pytest -q -p no:cacheprovider -m gpu -rs tests/capture/test_nsys_session.py
step check 60 python3 -m rlprof capture --check
LINES_SHOWN=45 step vla 100 bash -c vla
LINES_SHOWN=60 step soak 220 bash -c beside
step overhead 230 python3 -m benchmarks.gpu.capture_overhead --out "$out" --libraries "$libraries" --rounds 5 --seconds 110 ${OVERHEAD:-}
step decode 80 python3 -m benchmarks.gpu.decode_cost --out "$out"
step rates 60 python3 -m benchmarks.gpu.sampler_facts --out "$out/rates" --only rates,stalled,metrics
step memory 60 python3 -m benchmarks.gpu.sampler_memory --out "$out"
step nsys 130 python3 -m benchmarks.gpu.cupti_vs_nsys capture --out "$out" --libraries "$libraries" --seconds 7
step numbers 70 python3 -m benchmarks.gpu.four_numbers --out "$out"
step annotate 90 python3 -m benchmarks.annotate_overhead
cd "$out" || exit 1
for part in soak rates; do [ -d $part ] && mv $part/sampler_facts.json sampler_$part.json && rmdir $part; done
shopt -s nullglob; rest=(./*.json ./*.log)
[ "${#rest[@]}" -gt 0 ] && tar czf rest.tar.gz "${rest[@]}" && rm -f "${rest[@]}"
ls -la; echo "== all: $SECONDS s"
