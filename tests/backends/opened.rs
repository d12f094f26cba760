//! Tests opening the files of a bottle that ended and was kept.

use bottle_backend::{Access, LAYERS, Origin, Prepared};
use bottle_plan::Resources;
use bottle_policy::names::{LISTENER_DIR, WORKSPACE};

use crate::fixture::{every_backend, every_isolating_backend, read, run, write};

fn in_workspace(name: &str) -> String {
    format!("{WORKSPACE}/{name}")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_bottle_can_be_read_and_changed() {
    for fixture in every_backend().await {
        let name = fixture.name();
        let bottle = fixture.bottle("ended").await;
        let channel = bottle.provisioned().await;
        write(&channel, &in_workspace("work"), b"done").await;
        bottle.stop().await;
        // Files can be opened any number of times, and in any order.
        for (round, access) in
            [Access::Read, Access::Write, Access::Write, Access::Read].into_iter().enumerate()
        {
            bottle.open(access).await;
            let channel = bottle.provisioned().await;
            assert_eq!(read(&channel, "work").await.as_deref(), Some("done"), "{name} {round}");
            if access == Access::Write {
                write(&channel, &in_workspace(&format!("changed-{round}")), b"later").await;
            }
            let before = read(&channel, "changed-1").await;
            assert_eq!(before.is_some(), round >= 1, "{name} {round}");
            bottle.stop().await;
            let left = bottle.found().await;
            assert!(!left.is_empty() && left.iter().all(|left| left.kind == LAYERS), "{name}: {left:?}");
        }
        let again = fixture.bottle_from("ended", Origin::Kept).await;
        let channel = again.provisioned().await;
        for file in ["work", "changed-1", "changed-2"] {
            assert!(read(&channel, file).await.is_some(), "{name}: {file}");
        }
        again.remove().await;
        assert_eq!(again.found().await, [], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opened_bottle_is_confined_and_has_no_network() {
    for fixture in every_isolating_backend().await {
        let name = fixture.name();
        let limits = Resources { pids: Some(300), ..Resources::default() };
        let bottle = fixture.bottle_with("apart", Prepared::default(), limits).await;
        let confined =
            "grep -E '^(Seccomp|NoNewPrivs|Cap.*):' /proc/self/status; grep processes /proc/self/limits";
        let running = bottle.shell(confined).await;
        assert!(running.contains("Seccomp:\t2") && running.contains("NoNewPrivs:\t1"), "{name}: {running}");
        bottle.stop().await;
        for access in [Access::Read, Access::Write] {
            bottle.open(access).await;
            let network = format!("grep -c : /proc/net/dev; ls -A {LISTENER_DIR} 2>/dev/null");
            let output = bottle.shell(&format!("{confined}; {network}")).await;
            assert_eq!(output, format!("{running}1\n"), "{name} {access:?}");
            bottle.stop().await;
        }
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_an_ended_bottle_changes_nothing_in_it() {
    for fixture in every_isolating_backend().await {
        let name = fixture.name();
        let bottle = fixture.bottle("unchanged").await;
        let channel = bottle.provisioned().await;
        write(&channel, &in_workspace("work"), b"done").await;
        bottle.stop().await;
        bottle.open(Access::Read).await;
        let channel = bottle.provisioned().await;
        let places = format!("{WORKSPACE}/new $HOME/new /usr/local/new /opt/new /etc/new");
        let script = format!(
            "exec 2>&1; for new in {places}; do (echo x >$new) 2>/dev/null; done; rm -rf {WORKSPACE}/work; \
             (echo x >>{WORKSPACE}/work) 2>/dev/null; chmod 777 {WORKSPACE}/work; echo x >/tmp/new && cat /tmp/new"
        );
        let script = script.replace("$HOME", &home_of(&bottle.prepared));
        let (output, _) = run(&channel, &["/bin/sh", "-c", &script]).await.expect("ran");
        // The apple backend opens a copy of the files for reading. The program may change this copy.
        let is_denied = output.contains("Read-only file system") || name == "apple";
        assert!(is_denied && output.ends_with("x\n"), "{name}: {output}");
        bottle.stop().await;

        bottle.open(Access::Write).await;
        let places = places.replace("$HOME", &home_of(&bottle.prepared));
        let output = bottle.shell(&format!("ls -d {places} 2>/dev/null; cat {WORKSPACE}/work")).await;
        assert_eq!(output, "done", "{name}");
        bottle.stop().await;
        bottle.remove().await;
    }
}

fn home_of(prepared: &Prepared) -> String {
    prepared.inside.as_ref().map_or_else(|| "/home/agent".to_owned(), |inside| inside.home.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_a_missing_bottle_fails_and_leaves_nothing() {
    for fixture in every_backend().await {
        let mut bottle = fixture.planned("missing");
        bottle.prepared = fixture.prepared().await.expect("prepared");
        for access in [Access::Read, Access::Write] {
            let error = bottle.try_open(access).await.expect_err("nothing there");
            assert!(error.one_line().contains("cannot open missing"), "{}: {error}", fixture.name());
            assert_eq!(bottle.found().await, [], "{}", fixture.name());
        }
    }
}
