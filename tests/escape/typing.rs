//! Tests that an agent cannot inject input into a terminal.

use nix::libc;

use crate::attempts;
use crate::fixture::every_isolating_backend;

/// A script that injects input into its own terminal, with the number of the ioctl request, and with another number
/// that has the same lower half.
fn script() -> String {
    format!(
        "{}import pty, sys\n\
         pid, terminal = pty.fork()\n\
         if pid == 0:\n\
         \x20 call('size', {ioctl}, 0, {size}, bytes(8))\n\
         \x20 call('type', {ioctl}, 0, {sti}, b'x')\n\
         \x20 call('type', {ioctl}, 0, {sti} | 1 << 32, b'x')\n\
         \x20 call('console', {ioctl}, 0, {linux}, b'\\x03')\n\
         \x20 os._exit(0)\n\
         said = b''\n\
         while True:\n\
         \x20 try: more = os.read(terminal, 4096)\n\
         \x20 except OSError: break\n\
         \x20 if not more: break\n\
         \x20 said += more\n\
         sys.stdout.write(said.decode().replace('\\r', ''))\n",
        attempts::CALLS,
        ioctl = libc::SYS_ioctl,
        size = libc::TIOCGWINSZ,
        sti = libc::TIOCSTI,
        linux = libc::TIOCLINUX,
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_input_injection_is_refused() {
    if !attempts::possible("typing into a terminal") {
        return;
    }
    let script = script();
    let outside = attempts::outside(&script);
    // Newer kernels disable the request for every process, with another error.
    assert!(outside.contains("size done\n") && !outside.contains("type EPERM\n"), "the control: {outside}");
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("typist").await;
        let inside = attempts::inside(&bottle, &script).await;
        assert_eq!(inside, "size done\ntype EPERM\ntype EPERM\nconsole EPERM\n", "{}", fixture.name());
        bottle.remove().await;
    }
}
