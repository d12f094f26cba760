//! Tests that an agent cannot write files of the host.

use crate::fixture::{every_isolating_backend, run};

#[tokio::test(flavor = "multi_thread")]
async fn no_path_resolves_to_an_outside_file() {
    for fixture in every_isolating_backend().await {
        let target = fixture.host.user_home.join("notes/target");
        std::fs::create_dir_all(target.parent().expect("a parent")).expect("made");
        std::fs::write(&target, "before").expect("written");
        let bottle = fixture.bottle("writes").await;
        let said = bottle
            .shell(&format!(
                "t={0}; echo control >/workspace/inside && cat /workspace/inside; exec 2>/dev/null; \
                 cd /workspace; ln -s $t link; ln -s / root; ln -s ../../../../../../../.. up; ln $t hard; \
                 for p in /workspace/link /workspace/root$t /workspace/up$t /proc/self/root$t /proc/1/root$t \
                     /proc/self/cwd/../../../../..$t /proc/1/cwd$t /proc/self/fd/../root$t hard; do \
                     (echo evil >$p); rm -f $p; mv /workspace/inside $p; cp /bin/sh $p; done; \
                 for p in /proc/self/root /proc/1/root /workspace/root /workspace/up; do mkdir -p $p{1}; \
                     (echo evil >$p$t); done",
                target.display(),
                target.parent().expect("a parent").display(),
            ))
            .await;
        assert_eq!(said, "control\n", "{}", fixture.name());
        assert_eq!(std::fs::read_to_string(&target).expect("there"), "before", "{}", fixture.name());
        bottle.remove().await;
    }
}

/// Directories that cannot be written, whether the bottle uses the host's system or an image. The exception is
/// `/dev/shm`, which can be written and is the control for the read-only directories.
const SHUT: [&str; 6] = ["/dev/shm", "/dev", "/sys", "/proc", "/proc/sys", "/run/bottle/proxy"];
const SHUT_FILES: [&str; 2] = ["/run/bottle/bottle", "/proc/1/mem"];

/// Further paths that cannot be written if the bottle uses the host's system.
const SYSTEM: [&str; 10] =
    ["/", "/usr", "/usr/bin", "/usr/lib", "/bin", "/lib", "/sbin", "/etc", "/etc/ssl", "/home"];
const SYSTEM_FILES: [&str; 6] =
    ["/etc/passwd", "/etc/hosts", "/etc/resolv.conf", "/bin/sh", "/usr/bin/env", "/etc/ld.so.cache"];

/// A script that writes to all `directories` and `files`, and prints the paths that could be written.
fn write(directories: &[&str], files: &[&str]) -> String {
    format!(
        "for d in {}; do (echo evil >$d/evil) 2>/dev/null && echo wrote $d; done; \
         for f in {}; do (echo evil >>$f) 2>/dev/null && echo wrote $f; \
             [ -e $f ] && chmod 777 $f 2>/dev/null && echo changed $f; done; true",
        directories.join(" "),
        files.join(" ")
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn system_directories_are_read_only() {
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("system").await;
        assert_eq!(bottle.shell(&write(&SHUT, &SHUT_FILES)).await, "wrote /dev/shm\n", "{}", fixture.name());
        let channel = bottle.connect().await;
        let script = write(&SYSTEM, &SYSTEM_FILES);
        let (said, _) = run(&channel, &["/bin/sh", "-c", &script]).await.expect("ran");
        if fixture.is_in_image() && !fixture.is_contained() {
            // An image's system files belong to the bottle alone, so the bottle may write to them. In a container, they
            // belong to root.
            assert!(said.starts_with("wrote /\nwrote /usr\n"), "{said}");
            let other = fixture.bottle("other").await;
            let find = "find / -name proc -prune -o -name evil -print; cat /etc/* /bin/sh 2>/dev/null | grep -c ^evil";
            assert_eq!(other.shell(find).await, "0\n");
            other.remove().await;
        } else {
            assert_eq!(said, "", "{}", fixture.name());
        }
        bottle.remove().await;
    }
}
