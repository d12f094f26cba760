//! Tests that a bottle cannot reach the user's keys, shell history and sockets.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::Command;

use crate::attempts;
use crate::fixture::every_isolating_backend;

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_history_are_invisible() {
    for fixture in every_isolating_backend().await {
        let mark = format!("planted-{:016x}", rand::random::<u64>());
        let home = &fixture.host.user_home;
        for name in [".ssh/id_ed25519", ".aws/credentials", ".bash_history", ".netrc", ".config/gh/hosts.yml"]
        {
            let path = home.join(format!("{name}.{mark}"));
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(&path, "a key of the user's").expect("written");
        }
        let find = format!("find $0 -path /proc -prune -o -name '*{mark}*' -print 2>/dev/null | wc -l");
        let control = Command::new("/bin/sh").args(["-c", &find]).arg(home).output().expect("find");
        assert_eq!(String::from_utf8_lossy(&control.stdout).trim(), "5", "the control");
        let bottle = fixture.bottle("greedy").await;
        let said = bottle.shell(&find.replace("$0", "/")).await;
        assert_eq!(said.trim(), "0", "{}", fixture.name());
        // The user's files cannot be reached by their paths either, and the environment of the user's shell is not
        // visible.
        let channel = bottle.connect().await;
        let list = format!("ls -A {} 2>&1 | grep -v 'No such file'; env | cut -d= -f1", home.display());
        let (said, _) = crate::fixture::run(&channel, &["/bin/sh", "-c", &list]).await.expect("ran");
        let names: Vec<&str> = said.lines().collect();
        assert!(names.iter().all(|name| ["PATH", "PWD"].contains(name)), "{}: {said}", fixture.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_of_other_programs_are_unreachable() {
    if !attempts::possible("sockets of other programs") {
        return;
    }
    for fixture in every_isolating_backend().await {
        let directory = &fixture.host.user_home;
        std::fs::create_dir_all(directory).expect("made");
        let path = directory.join("agent.sock");
        let _named = UnixListener::bind(&path).expect("an agent of the user's");
        let name = format!("bottle-test-{:016x}", rand::random::<u64>());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let _abstract = UnixListener::bind_addr(&address).expect("a service of the desktop's");
        UnixStream::connect(&path).expect("the control");
        UnixStream::connect_addr(&address).expect("the control");
        let script = format!(
            "import socket\n\
             for path in ['{}', '\\0{name}', '/var/run/docker.sock', '/run/docker.sock', \
                          '/run/containerd/containerd.sock', '/run/dbus/system_bus_socket', \
                          '/tmp/.X11-unix/X0', '/run/systemd/private']:\n\
             \x20 s = socket.socket(socket.AF_UNIX)\n\
             \x20 try: s.connect(path); print('reached', path)\n\
             \x20 except OSError: pass\n\
             a = socket.socket(socket.AF_UNIX); a.bind('\\0own'); a.listen()\n\
             socket.socket(socket.AF_UNIX).connect('\\0own'); print('own')\n",
            path.display()
        );
        let bottle = fixture.bottle("caller").await;
        assert_eq!(attempts::inside(&bottle, &script).await, "own\n", "{}", fixture.name());
        bottle.remove().await;
    }
}
