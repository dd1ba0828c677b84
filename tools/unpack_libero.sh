#!/bin/bash
# Makes an archive of tools/pack_libero.py usable on a machine without a network, and says which Python to use.
# Usage: unpack_libero.sh ARCHIVE DEST [PYTHON]     PYTHON: of the archive's version, with numpy, scipy, numba,
# matplotlib, Pillow, OpenCV and PyYAML; by default python3. The last line printed is
#   RLPROF_LIBERO_PYTHON=DEST/bin/python
# That Python sees LIBERO, MuJoCo 3.3.7, the loaders of GL that the machine lacks, and the NVIDIA driver's EGL.
# Again on the same DEST: nothing is unpacked anew. DEST/osmesa may hold what tools/pack_osmesa.sh packs. Env: LIBERO_CHECK=0 leaves out the check (it also compiles
# what numba caches, which 14 processes would else do at once).
set -euo pipefail
[ $# -ge 2 ] || { sed -n 2,9p "$0"; exit 2; }
archive=$1 dest=$2 python=${3:-python3}
here=$(cd "$(dirname "$0")" && pwd)
say() { echo "unpack_libero: $*" >&2; }
die() { say "$*"; exit 1; }

[ -r "$archive" ] || die "no archive $archive; make one with tools/pack_libero.py"
python=$(command -v "$python") || die "no Python called ${3:-python3}"
if [ ! -f "$dest/content.json" ]; then
  mkdir -p "$dest"
  part=$(mktemp -d "$dest/.part.XXXXXX"); trap 'rm -rf "$part"' EXIT
  # Python reads xz where the program xz is not installed
  "$python" -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="data")' "$archive" "$part" ||
    die "$archive is damaged"
  rm -rf "$dest/site" "$dest/gl" "$dest/licences"
  mv "$part"/site "$part"/licences "$dest"/
  mkdir -p "$dest/gl"; [ ! -d "$part/gl" ] || mv "$part/gl" "$dest/gl.all"
  mv "$part/content.json" "$dest/"
fi
want=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["python"])' "$dest/content.json")
have=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$want" = "$have" ] || die "the archive is for Python $want and $python is $have; name another as third argument"

# loaders of GL: only what the machine has not
there=$(ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null || true)
known() { grep -q "^[[:space:]]*$1 " <<<"$there"; }
mkdir -p "$dest/gl"
for file in "$dest"/gl.all/*; do
  name=$(basename "$file"); soname=$(sed -E 's/(\.so\.[0-9]+).*/\1/' <<<"$name")
  known "$soname" || cp -P "$file" "$dest/gl/$name"
done 2>/dev/null || true
# PyOpenGL asks for names without a version first
for file in "$dest"/gl/lib{EGL,GL,OpenGL,GLESv2}.so.[0-9]; do
  [ ! -e "$file" ] || ln -sfn "$(basename "$file")" "${file%.[0-9]}"
done
# the driver's EGL: its vendor file, or one that names its library
vendor=$(find /usr/share/glvnd /etc/glvnd /usr/local/nvidia -name 10_nvidia.json 2>/dev/null | head -n 1 || true)
library=$(find /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/local/nvidia /usr/local/cuda/compat -name 'libEGL_nvidia.so.0' 2>/dev/null | head -n 1 || true)
if [ -z "$vendor" ] && [ -n "$library" ]; then
  vendor=$dest/gl/10_nvidia.json
  printf '{"file_format_version": "1.0.0", "ICD": {"library_path": "%s"}}\n' "$library" > "$vendor"
fi
libraries=$(cd "$dest" && pwd)/gl:$(cd "$dest" && pwd)/osmesa
if [ -n "$library" ] && ! known libEGL_nvidia.so.0; then libraries=$libraries:$(dirname "$library"); fi

mkdir -p "$dest/bin"
cat > "$dest/bin/python.new" <<EOF
#!/bin/bash
# made by unpack_libero.sh: $python with LIBERO
export PYTHONPATH="$(cd "$dest" && pwd)/site\${PYTHONPATH:+:\$PYTHONPATH}"
export LD_LIBRARY_PATH="\${LD_LIBRARY_PATH:+\$LD_LIBRARY_PATH:}$libraries"
${vendor:+export __EGL_VENDOR_LIBRARY_FILENAMES="\${__EGL_VENDOR_LIBRARY_FILENAMES:-$vendor}"}
exec "$python" "\$@"
EOF
chmod +x "$dest/bin/python.new"; mv "$dest/bin/python.new" "$dest/bin/python"
say "driver's EGL: ${vendor:-none found}; loaders of GL added: $(ls "$dest/gl" | tr '\n' ' ')"
if [ "${LIBERO_CHECK:-1}" != 0 ]; then
  "$dest/bin/python" "$here/check_libero.py" >&2 || die "LIBERO does not work with $python, see above"
fi
echo "RLPROF_LIBERO_PYTHON=$(cd "$dest" && pwd)/bin/python"
