//! Freezing a bottle, going on with what was frozen or kept, and removing it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bottle::backend::{BackendErrorKind, Copied, Origin, ProgressSink, Snapshot};
use bottle_contract::names::{AGENT_USER, CA_FILE, WORKSPACE};

use crate::stand::{Stand, every_backend, read, run, write};

fn in_home(name: &str) -> String {
    format!("/home/{AGENT_USER}/{name}")
}

fn in_workspace(name: &str) -> String {
    format!("{WORKSPACE}/{name}")
}

/// Every backend that makes snapshots while a bottle goes on.
async fn every_freezing_backend() -> Vec<Stand> {
    let mut stands = every_backend().await;
    stands.retain(|stand| stand.backend.capabilities().live_commit);
    stands
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bottle_goes_on_while_it_is_frozen_and_a_later_one_begins_with_it() {
    for stand in every_freezing_backend().await {
        let bottle = stand.bottle("first").await;
        let channel = bottle.provisioned().await;
        write(&channel, &in_home("installed"), b"a tool").await;
        write(&channel, &in_workspace("src/work"), b"half done").await;
        let told = Arc::new(AtomicU64::new(0));
        let counting = {
            let told = told.clone();
            // An engine copies by itself, and counts no files.
            ProgressSink::new(move |copied: Copied| {
                told.store(copied.files + copied.bytes, Ordering::Relaxed)
            })
        };
        let snapshot = stand.backend.freeze(bottle.slug(), None, counting).await.expect("frozen").snapshot;
        assert_eq!(&snapshot.slug, bottle.slug());
        assert!(told.load(Ordering::Relaxed) > 0, "{}: nobody was told", stand.name());
        assert_eq!(stand.backend.snapshots().await.expect("listed"), std::slice::from_ref(&snapshot));

        // The same processes, with the same files.
        write(&channel, &in_workspace("src/work"), b"done").await;
        assert_eq!(read(&channel, "src/work").await.as_deref(), Some("done"), "{}", stand.name());
        bottle.remove().await;
        assert_eq!(stand.backend.snapshots().await.expect("listed"), std::slice::from_ref(&snapshot));

        let again = stand.bottle_from("first", Origin::Snapshot(snapshot.clone())).await;
        let channel = again.provisioned().await;
        assert_eq!(read(&channel, "src/work").await.as_deref(), Some("half done"), "{}", stand.name());
        write(&channel, &in_workspace("src/work"), b"another way").await;
        again.remove().await;

        // What was written since is not in it.
        let third = stand.bottle_from("first", Origin::Snapshot(snapshot)).await;
        let channel = third.provisioned().await;
        assert_eq!(read(&channel, "src/work").await.as_deref(), Some("half done"), "{}", stand.name());
        third.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_belongs_to_one_launch_is_not_in_a_snapshot() {
    for stand in every_freezing_backend().await {
        let bottle = stand.bottle("clean").await;
        let channel = bottle.provisioned().await;
        write(&channel, CA_FILE, b"of this launch").await;
        write(&channel, "/tmp/scratch", b"of this launch").await;
        assert_eq!(read(&channel, CA_FILE).await.is_some(), stand.name() != "fake");
        let snapshot = bottle.freeze(None).await;
        bottle.remove().await;
        let again = stand.bottle_from("clean", Origin::Snapshot(snapshot)).await;
        let channel = again.provisioned().await;
        for path in [CA_FILE, "/tmp/scratch"] {
            assert_eq!(read(&channel, path).await, None, "{} {path}", stand.name());
        }
        again.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_snapshot_stands_by_itself() {
    for stand in every_freezing_backend().await {
        let bottle = stand.bottle("several").await;
        let channel = bottle.provisioned().await;
        write(&channel, &in_workspace("same"), b"same").await;
        write(&channel, &in_workspace("gone"), b"gone").await;
        write(&channel, &in_workspace("changed"), b"one").await;
        let one = bottle.freeze(None).await;
        write(&channel, &in_workspace("changed"), b"two").await;
        let two = bottle.freeze(Some(&one)).await;
        write(&channel, &in_workspace("changed"), b"three").await;
        let three = bottle.freeze(Some(&two)).await;
        assert_eq!(
            stand.backend.snapshots().await.expect("listed"),
            [one.clone(), two.clone(), three.clone()]
        );
        // The one in the middle goes, and takes nothing from the others.
        stand.backend.remove_snapshot(&two).await.expect("removed");
        stand.backend.remove_snapshot(&two).await.expect("twice is no error");
        bottle.remove().await;
        for (snapshot, changed) in [(&one, "one"), (&three, "three")] {
            let again = stand.bottle_from("several", Origin::Snapshot(snapshot.clone())).await;
            let channel = again.provisioned().await;
            for (name, content) in [("same", "same"), ("gone", "gone"), ("changed", changed)] {
                assert_eq!(read(&channel, name).await.as_deref(), Some(content), "{} {name}", stand.name());
            }
            again.remove().await;
        }
        let prepared = stand.prepared().await.expect("prepared");
        let gone = bottle::backend::Site { origin: &Origin::Snapshot(two), ..bottle.site() };
        stand.backend.make_network(&gone).await.expect("network");
        let error = stand.backend.start_guest(&gone, &prepared).await.expect_err("it is gone");
        assert!(error.message.contains("several"), "{}: {error}", stand.name());
        bottle.remove().await;
        for snapshot in [one, three] {
            stand.backend.remove_snapshot(&snapshot).await.expect("removed");
        }
        assert_eq!(stand.backend.snapshots().await.expect("listed"), [], "{}", stand.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_deleted_is_not_in_the_next_snapshot() {
    for stand in every_freezing_backend().await {
        if stand.name() == "fake" {
            // It has no program that deletes.
            continue;
        }
        let bottle = stand.bottle("deleted").await;
        bottle.shell("mkdir -p ~/a/b; echo x >~/a/b/c; echo y >~/d; ln -s d ~/e").await;
        let one = bottle.freeze(None).await;
        let channel = bottle.connect().await;
        run(&channel, &["/bin/sh", "-c", "rm -rf ~/a ~/d; echo z >/home/agent/e"]).await.expect("ran");
        let two = bottle.freeze(Some(&one)).await;
        bottle.remove().await;
        let again = stand.bottle_from("deleted", Origin::Snapshot(two)).await;
        let output = again.shell("cd /home/agent; ls -A; cat e").await;
        let names: Vec<&str> = output.lines().collect();
        // An image's home may have files of its own.
        assert!(!names.contains(&"a") && names.ends_with(&["z"]), "{}: {output}", stand.name());
        again.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_bottle_is_gone_on_with_and_can_be_frozen_where_it_stands() {
    for stand in every_freezing_backend().await {
        let bottle = stand.bottle("kept-on").await;
        let channel = bottle.provisioned().await;
        write(&channel, &in_workspace("work"), b"half done").await;
        write(&channel, &in_home("note"), b"remember").await;
        bottle.stop().await;
        let snapshot = bottle.freeze(None).await;

        let again = stand.bottle_from("kept-on", Origin::Kept).await;
        let channel = again.provisioned().await;
        assert_eq!(read(&channel, "work").await.as_deref(), Some("half done"), "{}", stand.name());
        let note = read(&channel, &in_home("note")).await;
        assert!(stand.name() == "fake" || note.as_deref() == Some("remember"), "{}: {note:?}", stand.name());
        write(&channel, &in_workspace("work"), b"ruined").await;
        again.stop().await;

        // Back to the snapshot: what was kept since is replaced.
        let back = stand.bottle_from("kept-on", Origin::Snapshot(snapshot)).await;
        let channel = back.provisioned().await;
        assert_eq!(read(&channel, "work").await.as_deref(), Some("half done"), "{}", stand.name());
        back.remove().await;
        assert_eq!(back.found().await, [], "{}", stand.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_nothing_is_an_error_and_leaves_nothing() {
    for stand in every_freezing_backend().await {
        let bottle = stand.planned("nothing");
        let error = stand
            .backend
            .freeze(bottle.slug(), None, ProgressSink::nobody())
            .await
            .expect_err("nothing there");
        assert!(error.message.contains("nothing"), "{}: {error}", stand.name());
        assert_eq!(stand.backend.snapshots().await.expect("listed"), [], "{}", stand.name());
        assert_eq!(bottle.found().await, [], "{}", stand.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_of_another_home_are_not_seen_and_names_that_are_none_are_refused() {
    let stands = every_freezing_backend().await;
    for stand in &stands {
        let bottle = stand.bottle("mine-too").await;
        let snapshot = bottle.freeze(None).await;
        for other in &stands {
            if !std::ptr::eq(other, stand) {
                assert_eq!(other.backend.snapshots().await.expect("listed"), [], "{}", other.name());
            }
        }
        for reference in ["", "..", "../mine-too", "/etc", ".new-1"] {
            let foreign = Snapshot { reference: reference.to_owned(), ..snapshot.clone() };
            let error = stand.backend.remove_snapshot(&foreign).await.expect_err(reference);
            assert_eq!(error.kind, BackendErrorKind::Failed, "{} {reference}", stand.name());
        }
        assert_eq!(stand.backend.snapshots().await.expect("listed"), std::slice::from_ref(&snapshot));
        stand.backend.remove_snapshot(&snapshot).await.expect("removed");
        bottle.remove().await;
    }
}
