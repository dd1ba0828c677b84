#!/bin/bash
# Packs Mesa's software renderer (libOSMesa) and what it links, for LIBERO with --rendering osmesa on a machine without
# it: about 37 MB. On Debian or Ubuntu; downloads packages, installs nothing.
# Usage: pack_osmesa.sh OUT.tar.xz      There: unpack into DEST/osmesa of tools/unpack_libero.sh.
set -euo pipefail
[ $# -eq 1 ] && [ "${1#-}" = "$1" ] || { sed -n 2,5p "$0"; exit 2; }
mkdir -p "$(dirname "$1")"; out=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
die() { echo "pack_osmesa: $*" >&2; exit 1; }
command -v apt-get > /dev/null && command -v dpkg-deb > /dev/null || die "needs apt-get and dpkg-deb"
work=$(mktemp -d); chmod 755 "$work"; trap 'rm -rf "$work"' EXIT
mkdir "$work"/{deb,root,osmesa}

# whatever apt says that libosmesa6 links, less the C library, the compiler's runtime and what every machine has
packages=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
  --no-enhances libosmesa6 | grep '^[a-z]' | grep -vE '^(libc6|gcc-.*-base|libgcc-s1|libstdc\+\+6|libcrypt1|zlib1g|libzstd1|libgcc1|debconf.*|cdebconf.*)$' | sort -u)
( cd "$work/deb" && for p in $packages; do apt-get download -qq "$p" 2> /dev/null || echo "pack_osmesa: no $p" >&2; done )
ls "$work"/deb/libosmesa6_*.deb > /dev/null 2>&1 || die "cannot download libosmesa6"
for deb in "$work"/deb/*.deb; do dpkg-deb -x "$deb" "$work/root"; done

# of all that only what the loader asks for
libraries=$work/root/usr/lib/x86_64-linux-gnu:$work/root/lib/x86_64-linux-gnu
needed=$(LD_LIBRARY_PATH=$libraries ldd "$(readlink -f "$work"/root/usr/lib/x86_64-linux-gnu/libOSMesa.so.8)" | awk '{print $1}')
for name in libOSMesa.so.8 $needed; do
  for folder in ${libraries//:/ }; do
    [ -e "$folder/$name" ] && cp -L "$folder/$name" "$work/osmesa/$name" && break
  done
done
ln -s libOSMesa.so.8 "$work/osmesa/libOSMesa.so"
for copyright in "$work"/root/usr/share/doc/*/copyright; do
  [ -f "$copyright" ] && cp "$copyright" "$work/osmesa/$(basename "$(dirname "$copyright")").copyright"
done
tar cf - -C "$work" osmesa | xz -T1 --x86 --lzma2=preset=6,dict=64MiB > "$work/packed"
mv "$work/packed" "$out.part" && mv "$out.part" "$out"
echo "$out: $(du -h "$out" | cut -f1), $(ls "$work/osmesa" | grep -c '\.so') libraries of" $(ls "$work/deb" | sed 's/_.*//')
