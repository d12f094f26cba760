//! Tests that an agent cannot inspect, stop or kill processes outside its bottle.

use std::process::{Child, Command};

use bottle_protocol::session::guest::Exit;

use crate::attempts;
use crate::fixture::{every_isolating_backend, run};

/// A process of the user. The test ends it.
struct Victim(Child);

impl Victim {
    fn new() -> Self {
        Self(Command::new("sleep").arg("600").spawn().expect("a process"))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn outside_processes_cannot_be_seen_traced_or_signalled() {
    if !attempts::possible("processes outside") {
        return;
    }
    let attach = |pid: &str| {
        format!(
            "{}import signal\n\
             pid = {pid}\n\
             for number in [0, signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL]:\n\
             \x20 try: os.kill(pid, number); print('signalled', number)\n\
             \x20 except OSError as e: print(errno.errorcode[e.errno])\n\
             print(os.path.exists('/proc/%d' % pid))\n\
             libc.ptrace.argtypes = [ctypes.c_long] * 4\n\
             print('traced' if libc.ptrace(16, pid, 0, 0) == 0 else errno.errorcode[ctypes.get_errno()])\n",
            attempts::CALLS
        )
    };
    for fixture in every_isolating_backend().await {
        let mut victim = Victim::new();
        let bottle = fixture.bottle("violent").await;
        let said = attempts::inside(&bottle, &attach(&victim.0.id().to_string())).await;
        assert_eq!(said, "ESRCH\nESRCH\nESRCH\nESRCH\nFalse\nESRCH\n", "{}", fixture.name());
        // As a control, an agent can trace and kill its own child process.
        let channel = bottle.connect().await;
        let own = attach("os.fork() or os._exit(__import__('time').sleep(60))")
            .replace("[0, signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL]", "[0]");
        let (said, _) = run(&channel, &["/usr/bin/python3", "-c", &own]).await.expect("ran");
        assert_eq!(said, "signalled 0\nTrue\ntraced\n", "{}", fixture.name());
        let (_, exit) = run(&channel, &["/bin/sh", "-c", "kill -9 -1; kill -9 $$"]).await.expect("ran");
        assert_eq!(exit, Exit::Signal(9), "{}", fixture.name());
        assert_eq!(run(&channel, &["echo", "alive"]).await.expect("ran").0, "alive\n", "{}", fixture.name());
        assert_eq!(victim.0.try_wait().expect("asked"), None, "{}", fixture.name());
        bottle.remove().await;
    }
}
