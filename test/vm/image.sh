#!/bin/bash
# image.sh DIR: builds what a test machine boots from, out of Debian packages,
# and prints the folder it is in: DIR/KEY with vmlinuz, initrd.img, root.ext4.
#
# KEY is the hash of this file and of the release, so that a change of either
# builds anew and no change costs nothing. A lock in DIR lets one build at a
# time go on; the others wait and find its result. A build stands aside, in
# DIR/KEY.new, until it is whole: what has its final name is whole.
#
# Runs as root on Debian, amd64. Exits 77 where it cannot run, with the reason
# as the last line of standard error; any other failure is a failure.
#
# No debootstrap and no maintainer scripts: apt resolves and downloads against
# an empty package database, the packages are unpacked over one another, and the
# few things their scripts would have done are done below. That takes seconds
# where an installation takes minutes.
set -euo pipefail
shopt -s inherit_errexit

DIR=${1:?usage: image.sh DIR}
SELF=$0

# A minimal system with systemd as pid 1. dbus: systemd-run --wait needs it.
# usr-is-merged stands in for usrmerge, which would bring perl.
PACKAGES="base-files usr-is-merged base-passwd bash dash coreutils debianutils findutils grep sed mawk tar gzip
  util-linux util-linux-extra mount login passwd hostname libc-bin init-system-helpers
  systemd systemd-sysv libnss-systemd dbus iproute2 procps kmod busybox-static"
# The cloud kernel is a third of the general one and has every driver that an
# emulated machine needs.
KERNEL=linux-image-cloud-amd64
# What only maintainer scripts would have used.
UNUSED='^(perl-base|dpkg|debconf|gcc-[0-9]+-base|libperl.*|perl-modules.*)_'
# The modules that go into the image; ext4 is built into the kernel, these are not.
MODULES='virtio|virtio_ring|virtio_pci|virtio_pci_modern_dev|virtio_pci_legacy_dev|virtio_blk|virtio_net|failover|net_failover|overlay|fuse|tun|veth|dummy|loop|unix_diag|inet_diag|vsock|vmw_vsock_[a-z_]*'
# The modules that the initrd loads, in the order in which they need each other.
BOOT_MODULES="virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk"

cannot() { echo "$*" >&2; exit 77; }
say() { echo "image: $*" >&2; }

[ "$(id -u)" = 0 ] || cannot "building the machine's image takes root: file owners, chroot, apt"
[ "$(uname -m)" = x86_64 ] || cannot "the machine's image is built for amd64 only, this host is $(uname -m)"
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || cannot "no apt here: the machine's image is made of Debian packages"
. /etc/os-release
[ "${ID:-}" = debian ] || cannot "apt's sources here are ${ID:-unknown}'s; the machine's image is made of Debian's packages"

mkdir -p "$DIR"
exec 9>"$DIR/lock"
flock --nonblock 9 || { say "another build goes on, waiting"; flock 9; }

# lists makes sure that apt knows what there is. Another process may hold the
# lists' lock, or a mirror be away for a moment.
lists() {
  [ -z "$(find /var/lib/apt/lists -name '*_Packages*' -mmin -1440 -print -quit 2>/dev/null)" ] || return 0
  local try
  for try in 1 2 3 4 5 6; do
    apt-get -q update >/dev/null && return 0
    sleep 5
  done
  cannot "apt cannot fetch its package lists"
}

# Tools of the host: the emulator, and the two that write images.
missing=
for tool in qemu-system-x86_64:qemu-system-x86 cpio:cpio mke2fs:e2fsprogs; do
  command -v "${tool%%:*}" >/dev/null || missing="$missing ${tool##*:}"
done
if [ -n "$missing" ]; then
  lists
  say "installing$missing"
  DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 --no-install-recommends install $missing >&2 ||
    cannot "cannot install$missing"
fi

KEY=$( { cat "$SELF"; echo "${VERSION_ID:-testing}"; } | sha256sum | cut -c1-16)
OUT=$DIR/$KEY
if [ -d "$OUT" ]; then
  echo "$OUT"
  exit 0
fi
BEGAN=$SECONDS
# What interrupted builds left, and images that were built long ago: another
# checkout may be about to boot from a recent one.
rm -rf "$DIR"/*.new
find "$DIR" -mindepth 1 -maxdepth 1 -type d ! -name packages -mtime +7 -exec rm -rf {} +
NEW=$OUT.new
ROOT=$NEW/root
mkdir -p "$DIR"/packages/{archives,none}/partial "$NEW"

# 1. Download. With an empty status file apt takes the host for a machine that
# has nothing, and resolves the whole closure.
: >"$DIR/packages/status"
fresh_apt() {
  apt-get -q -y -o Dir::State::status="$DIR/packages/status" -o Dir::Cache::archives="$DIR/packages/archives" \
    -o Dir::Cache::pkgcache="$DIR/packages/pkgcache.bin" -o Dir::Cache::srcpkgcache="" \
    -o APT::Sandbox::User=root -o Debug::NoLocking=1 -o APT::Install-Recommends=0 "$@"
}
lists
kernel=$(apt-cache depends "$KERNEL" | awk '/Depends:/ {print $2; exit}')
[ -n "$kernel" ] || cannot "apt knows no $KERNEL"
# The list is asked for with an empty archive folder: --print-uris leaves out
# what is already there.
fresh_apt -o Dir::Cache::archives="$DIR/packages/none" --print-uris install $PACKAGES |
  awk -F"'" '/^.http/ {split($3, a, " "); print a[1]}' >"$NEW/list"
fresh_apt --download-only install $PACKAGES >"$NEW/apt.log" || cannot "apt cannot download the packages: $(tail -1 "$NEW/apt.log")"
cd "$DIR/packages/archives"
ls "${kernel}"_*.deb >/dev/null 2>&1 || fresh_apt download "$kernel" >>"$NEW/apt.log" || cannot "apt cannot download $kernel"
kernel_deb=$(ls -t "${kernel}"_*.deb | head -1)

# 2. Unpack, the kernel beside the rest. The documentation is half the size.
mkdir -p "$ROOT"/usr/{bin,sbin,lib,lib64} "$NEW/kernel"
for d in bin sbin lib lib64; do ln -s "usr/$d" "$ROOT/$d"; done
dpkg-deb --fsys-tarfile "$kernel_deb" | tar -C "$NEW/kernel" -xf - --exclude=./usr &
export ROOT
grep -vE "$UNUSED" "$NEW/list" | xargs -P2 -n8 bash -ec 'set -o pipefail
  for deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar -C "$ROOT" -xf - --keep-directory-symlink \
      --exclude=./usr/share/{doc,man,locale,info,lintian,bash-completion} \
      --exclude=./usr/lib/x86_64-linux-gnu/gconv --exclude=./usr/lib/udev/hwdb.d
  done' unpack
wait $!
release=$(ls "$NEW/kernel/lib/modules")
modules=$NEW/kernel/lib/modules/$release
mkdir -p "$ROOT/lib/modules/$release"
cp "$modules"/modules.{order,builtin,builtin.modinfo} "$ROOT/lib/modules/$release"
( cd "$modules"; find kernel -name '*.ko' | grep -E "/($MODULES)\.ko$" | cpio -pdm --quiet "$ROOT/lib/modules/$release" )

# 3. What the maintainer scripts would have done.
cp "$ROOT/usr/share/base-passwd/passwd.master" "$ROOT/etc/passwd"
cp "$ROOT/usr/share/base-passwd/group.master" "$ROOT/etc/group"
cp "$ROOT/usr/share/base-files/profile" "$ROOT/etc/profile"
cat >"$ROOT/etc/nsswitch.conf" <<'FILE'
passwd: files systemd
group: files systemd
shadow: files
hosts: files dns
services: files
protocols: files
FILE
ln -sf mawk "$ROOT/usr/bin/awk"
rm -rf "$ROOT"/var/{run,lock}
ln -s /run "$ROOT/var/run"
ln -s /run/lock "$ROOT/var/lock"
echo vm >"$ROOT/etc/hostname"
printf '127.0.0.1 localhost vm\n::1 localhost\n' >"$ROOT/etc/hosts"
: >"$ROOT/etc/fstab"
echo 0123456789abcdef0123456789abcdef >"$ROOT/etc/machine-id" # a known id: no first-boot work
for service in 'auth required pam_permit.so' 'account required pam_permit.so' 'session required pam_unix.so' \
  'password required pam_permit.so'; do
  echo "$service" >"$ROOT/etc/pam.d/common-${service%% *}"
done
echo 'session required pam_unix.so' >"$ROOT/etc/pam.d/common-session-noninteractive"
ldconfig -r "$ROOT"
chroot "$ROOT" /bin/sh -ec "systemd-sysusers >/dev/null 2>&1; pwconv; grpconv; depmod $release"

# What takes long under emulation and no test looks at is masked: udev is not
# installed (devtmpfs is enough), so nothing may wait for a device unit.
units=$ROOT/etc/systemd/system
mkdir -p "$units"/{multi-user,sockets}.target.wants "$ROOT"/etc/systemd/{journald.conf.d,system.conf.d,system-generators}
for unit in getty.target getty@.service serial-getty@.service console-getty.service container-getty@.service \
  systemd-initctl.socket systemd-ask-password-{console,wall}.path systemd-update-utmp.service \
  systemd-update-utmp-runlevel.service systemd-machine-id-commit.service systemd-firstboot.service \
  systemd-sysusers.service systemd-binfmt.service systemd-pstore.service systemd-random-seed.service \
  systemd-boot-system-token.service systemd-remount-fs.service systemd-pcrphase{,-initrd,-sysinit}.service \
  systemd-logind.service dbus-org.freedesktop.login1.service systemd-modules-load.service systemd-repart.service \
  systemd-journal-flush.service systemd-journald-audit.socket systemd-journal-catalog-update.service \
  systemd-hwdb-update.service systemd-update-done.service ldconfig.service modprobe@.service \
  kmod-static-nodes.service dev-hugepages.mount dev-mqueue.mount sys-kernel-{debug,tracing,config}.mount \
  sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount fstrim.timer e2scrub_all.timer \
  systemd-tmpfiles-clean.timer remote-fs.target {remote-,}{crypt,verity}setup.target integritysetup.target; do
  ln -sf /dev/null "$units/$unit"
done
for generator in "$ROOT"/lib/systemd/system-generators/*; do
  ln -sf /dev/null "$ROOT/etc/systemd/system-generators/${generator##*/}"
done
rm -f "$ROOT"/lib/systemd/system/multi-user.target.wants/dbus.service
ln -sf /lib/systemd/system/dbus.socket "$units/sockets.target.wants/dbus.socket"
printf '[Journal]\nStorage=volatile\nRuntimeMaxUse=32M\nRateLimitIntervalSec=0\n' >"$ROOT/etc/systemd/journald.conf.d/vm.conf"
# An emulated processor is many times slower: what systemd waits for may take longer.
printf '[Manager]\nDefaultTimeoutStartSec=120s\nShowStatus=no\n' >"$ROOT/etc/systemd/system.conf.d/vm.conf"
ln -sf /lib/systemd/system/multi-user.target "$units/default.target"

# The payload: a unit that runs it and hands back what it left. Type=exec, not
# oneshot: the boot completes, and the system counts as running, while it runs.
ln -sf ../payload.service "$units/multi-user.target.wants/payload.service"
cat >"$units/payload.service" <<'FILE'
[Unit]
Description=Test payload
After=basic.target

[Service]
Type=exec
ExecStart=/usr/local/sbin/payload
FILE
mkdir -p "$ROOT/usr/local/sbin"
cat >"$ROOT/usr/local/sbin/payload" <<'FILE'
#!/bin/bash
# The second disk is the payload, read-only, whose program is named run; its
# output goes to the second serial port as it is written. The third disk takes
# /run/results as a tar.
mkdir -p /run/payload /run/results
stty -F /dev/ttyS1 raw -echo
echo 'machine: started' >/dev/ttyS1
mount -o ro /dev/vdb /run/payload
/run/payload/run </dev/null >/dev/ttyS1 2>&1
echo $? >/run/results/status
journalctl -b --no-pager -o short-monotonic >/run/results/journal 2>&1
tar -C /run/results -b 2048 -cf /dev/vdc .
sync
# The emulator was told not to reboot: this ends it at once.
echo 1 >/proc/sys/kernel/sysrq
echo b >/proc/sysrq-trigger
FILE
chmod +x "$ROOT/usr/local/sbin/payload"

# 4. The root image, with room for what tests write, and the initrd that loads
# the disk's driver and mounts it.
cp "$NEW/kernel/boot/vmlinuz-$release" "$NEW/vmlinuz"
mke2fs -q -t ext4 -O '^has_journal,^metadata_csum' -E root_owner=0:0 -m0 -N 32768 -d "$ROOT" "$NEW/root.ext4" \
  $(( $(du -sm "$ROOT" | cut -f1) * 12 / 10 + 512 ))M >/dev/null
initrd=$NEW/initrd
mkdir -p "$initrd"/{bin,dev,mnt,lib}
cp "$ROOT/bin/busybox" "$initrd/bin/"
for module in $BOOT_MODULES; do cp "$(find "$modules" -name "$module.ko")" "$initrd/lib/"; done
cat >"$initrd/init" <<FILE
#!/bin/busybox sh
b=/bin/busybox
\$b mount -t devtmpfs dev /dev
for module in $BOOT_MODULES; do \$b insmod /lib/\$module.ko; done
\$b mount -t ext4 /dev/vda /mnt || { echo "initrd: no root file system"; \$b reboot -f; }
\$b mount -o move /dev /mnt/dev
exec \$b switch_root /mnt /lib/systemd/systemd
FILE
chmod +x "$initrd/init"
( cd "$initrd"; find . | cpio -o -H newc --quiet -R 0:0 ) >"$NEW/initrd.img"

# 5. Keep what boots; on disk, then under its name.
rm -rf "$ROOT" "$NEW/kernel" "$initrd"
sync -f "$NEW"
mv "$NEW" "$OUT"
say "built in $((SECONDS - BEGAN)) s: kernel $release, root $(du -m "$OUT/root.ext4" | cut -f1) MB"
echo "$OUT"
