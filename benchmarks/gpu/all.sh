#!/bin/bash
# Everything that needs a GPU, one step after the other; each has a limit, and one that fails stops nothing.
# Usage: all.sh OUT PACKAGES [STEP...]   PACKAGES: folder of wheels, and of the libdw1 and libelf1 packages for nsys
set -u
out=$1; packages=$2; shift 2
steps=${*:-tests check vla overhead nsys numbers}
here=$(cd "$(dirname "$0")/../.." && pwd)
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site "$packages"/*.whl
for f in "$packages"/*.deb; do dpkg -x "$f" /tmp/dw; done
libraries=/tmp/dw/usr/lib/x86_64-linux-gnu
# a neutral place: a report of nsys holds the paths of what it ran
mkdir -p /opt/run /tmp/home; cp -r "$here/rlprof" "$here/benchmarks" "$here/tests" "$here/pyproject.toml" /opt/run/
cd /opt/run || exit 1
export PYTHONPATH=/opt/run:/tmp/site PYTHONUNBUFFERED=1
clean() { env -i PATH="$(dirname "$(command -v python3)"):/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" HOME=/tmp/home LANG=C.UTF-8 \
  PYTHONPATH="$PYTHONPATH" LD_LIBRARY_PATH="$libraries:${LD_LIBRARY_PATH:-}" "$@"; }
step() { name=$1; limit=$2; shift 2; case " $steps " in *" $name "*) ;; *) return;; esac
  echo "== $name"; began=$SECONDS; timeout "$limit" "$@" > "$out/$name.log" 2>&1; code=$?; tail -n 25 "$out/$name.log" | cut -c1-400
  echo "== $name: code $code, $((SECONDS - began)) s"; }
vla() {
  python3 -m rlprof capture --backend cupti --rate 10kHz --kernels --force -o "$out/vla_cupti.rlprof" -- python3 -m benchmarks.gpu.vla
  # processes of its own only: nsys notes the environment of all that it sees
  unshare --fork --pid --mount-proc env -i true 2>/dev/null && alone="unshare --fork --pid --mount-proc" || alone=
  clean $alone python3 -m rlprof capture --backend nsys --rate 2kHz --force -o /tmp/vla_nsys.rlprof -- python3 -m benchmarks.gpu.vla --iterations 2
  cp /tmp/vla_nsys.nsys-rep "$out/vla.nsys-rep"
}
export -f vla clean; export out libraries
step tests 90 python3 -m pytest -q -p no:cacheprovider -m gpu tests/capture/test_kernels.py tests/capture/samplers/test_gpu.py
step check 60 python3 -m rlprof capture --check
step vla 120 bash -c vla
step overhead 260 python3 -m benchmarks.gpu.capture_overhead --out "$out" --libraries "$libraries"
step nsys 170 python3 -m benchmarks.gpu.cupti_vs_nsys capture --out "$out" --libraries "$libraries" --seconds 15
step numbers 70 python3 -m benchmarks.gpu.four_numbers --out "$out"
step soak 260 python3 -m benchmarks.gpu.sampler_facts --out "$out" --only stalled,rates,soak --soak 180
step annotate 90 python3 -m benchmarks.annotate_overhead
cd "$out" && tar czf rest.tar.gz ./*.json ./*.log && rm -f ./*.json ./*.log; ls -la
