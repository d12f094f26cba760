//! Tests that set-id programs and device files give an agent no privileges.

use std::process::Command;

use bottle_test_support::skip;

use crate::fixture::every_isolating_backend;

#[tokio::test(flavor = "multi_thread")]
async fn set_id_programs_grant_nothing() {
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("setid").await;
        let said = bottle
            .shell(
                "cp /usr/bin/id /tmp/id; chmod 6755 /tmp/id; stat -c %a /tmp/id; /tmp/id -u; /tmp/id -ru; \
                 for p in $(find /usr/bin /usr/sbin -perm /6000 -type f 2>/dev/null); do echo found; done | sort -u; \
                 (su root -c id || sudo -n id || pkexec id) 2>/dev/null </dev/null; \
                 grep -c NoNewPrivs:.1 /proc/self/status",
            )
            .await;
        // An image loses the set-id bits when `bottle` unpacks it. The host's system and the images of an engine have
        // set-id programs. No such program works.
        let found = if fixture.is_in_image() && fixture.name() != "apple" { "" } else { "found\n" };
        assert_eq!(said, format!("6755\n1000\n1000\n{found}1\n"), "{}", fixture.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_cannot_be_created() {
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("maker").await;
        // As a control, a named pipe, which the same system call creates, succeeds. Device 0:0 is an overlay's mark for
        // a removed file; the kernel lets every user create it.
        let said = bottle
            .shell(
                "for d in /tmp /workspace /home/agent /dev/shm; do mkfifo $d/pipe && echo pipe; \
                     for n in 'b 8 0' 'b 254 0' 'c 1 1' 'c 1 11' 'c 10 232'; do \
                     mknod $d/node $n 2>/dev/null && echo made $n; done; done; true",
            )
            .await;
        assert_eq!(said, "pipe\n".repeat(4), "{}", fixture.name());
        if fixture.name() == "linux" && landlock_guards_files() {
            let channel = bottle.connect().await;
            let mark = ["mknod", "/tmp/deleted", "c", "0", "0"];
            let (said, _) = crate::fixture::run(&channel, &mark).await.expect("ran");
            assert!(said.contains("Permission denied"), "{said}");
        }
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_devices_do_not_work() {
    if !rustix::process::getuid().is_root() {
        skip::aloud("a planted device", &"only root can plant one");
        return;
    }
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("device").await;
        let Some(workspace) = fixture.backend.kept_workspace(bottle.slug()) else {
            skip::aloud(
                "a planted device",
                &format!("{}'s workspace is not a directory here", fixture.name()),
            );
            bottle.remove().await;
            continue;
        };
        let node = workspace.join("zero");
        let made = Command::new("mknod").args(["-m", "666"]).arg(&node).args(["c", "1", "5"]).status();
        assert!(made.expect("mknod").success());
        std::fs::File::open(&node).expect("the control");
        let said = bottle.shell("ls /workspace; head -c1 /workspace/zero 2>/dev/null | wc -c").await;
        assert_eq!(said, "zero\n0\n", "{}", fixture.name());
        bottle.remove().await;
    }
}

/// Whether this kernel's Landlock can restrict files without forbidding moves between directories.
fn landlock_guards_files() -> bool {
    use landlock::{AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    rules.handle_access(AccessFs::Refer).is_ok()
}
