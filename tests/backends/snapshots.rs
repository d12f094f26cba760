//! Tests freezing a bottle, resuming from snapshots and kept files, and removing snapshots.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bottle_backend::{
    BackendErrorKind, Copied, NewSnapshot, Origin, ProgressSink, RepositoryObjects, Snapshot,
};
use bottle_plan::Workspace;
use bottle_policy::names::{AGENT_USER, CA_FILE, GIT_OBJECTS_DIR, WORKSPACE};
use bottle_repository::Directory;

use crate::fixture::{every_backend, read, run, write};

fn in_home(name: &str) -> String {
    format!("/home/{AGENT_USER}/{name}")
}

fn in_workspace(name: &str) -> String {
    format!("{WORKSPACE}/{name}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_bottle_is_frozen_and_a_later_one_starts_from_it() {
    for fixture in every_backend().await {
        let bottle = fixture.bottle("first").await;
        let channel = bottle.provisioned().await;
        write(&channel, &in_home("installed"), b"a tool").await;
        write(&channel, &in_workspace("src/work"), b"half done").await;
        let told = Arc::new(AtomicU64::new(0));
        let counting = {
            let told = told.clone();
            // A container engine copies the files itself, and does not report the number of files.
            ProgressSink::new(move |copied: Copied| {
                told.store(copied.files + copied.bytes, Ordering::Relaxed)
            })
        };
        let snapshot = fixture
            .backend
            .make_snapshot(bottle.slug(), &NewSnapshot::default(), counting)
            .await
            .expect("frozen")
            .snapshot;
        assert_eq!(&snapshot.slug, bottle.slug());
        assert!(told.load(Ordering::Relaxed) > 0, "{}: nobody was told", fixture.name());
        assert_eq!(fixture.backend.snapshots().await.expect("listed"), std::slice::from_ref(&snapshot));

        // The same processes continue with the same files.
        write(&channel, &in_workspace("src/work"), b"done").await;
        assert_eq!(read(&channel, "src/work").await.as_deref(), Some("done"), "{}", fixture.name());
        bottle.remove().await;
        assert_eq!(fixture.backend.snapshots().await.expect("listed"), std::slice::from_ref(&snapshot));

        let again = fixture.bottle_from("first", Origin::Snapshot(snapshot.clone())).await;
        let channel = again.provisioned().await;
        assert_eq!(read(&channel, "src/work").await.as_deref(), Some("half done"), "{}", fixture.name());
        write(&channel, &in_workspace("src/work"), b"another way").await;
        again.remove().await;

        // The snapshot contains no writes that were made after the snapshot.
        let third = fixture.bottle_from("first", Origin::Snapshot(snapshot)).await;
        let channel = third.provisioned().await;
        assert_eq!(read(&channel, "src/work").await.as_deref(), Some("half done"), "{}", fixture.name());
        third.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_excludes_data_of_one_launch() {
    for fixture in every_backend().await {
        let bottle = fixture.bottle("clean").await;
        let channel = bottle.provisioned().await;
        write(&channel, CA_FILE, b"of this launch").await;
        write(&channel, "/tmp/scratch", b"of this launch").await;
        assert_eq!(read(&channel, CA_FILE).await.is_some(), fixture.name() != "fake");
        let snapshot = bottle.make_snapshot(None).await;
        bottle.remove().await;
        let again = fixture.bottle_from("clean", Origin::Snapshot(snapshot)).await;
        let channel = again.provisioned().await;
        for path in [CA_FILE, "/tmp/scratch"] {
            assert_eq!(read(&channel, path).await, None, "{} {path}", fixture.name());
        }
        again.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_snapshot_is_independent() {
    for fixture in every_backend().await {
        let bottle = fixture.bottle("several").await;
        let channel = bottle.provisioned().await;
        write(&channel, &in_workspace("same"), b"same").await;
        write(&channel, &in_workspace("gone"), b"gone").await;
        write(&channel, &in_workspace("changed"), b"one").await;
        let one = bottle.make_snapshot(None).await;
        write(&channel, &in_workspace("changed"), b"two").await;
        let two = bottle.make_snapshot(Some(&one)).await;
        write(&channel, &in_workspace("changed"), b"three").await;
        let three = bottle.make_snapshot(Some(&two)).await;
        assert_eq!(
            fixture.backend.snapshots().await.expect("listed"),
            [one.clone(), two.clone(), three.clone()]
        );
        // Removing the second snapshot does not affect the first and the third.
        fixture.backend.remove_snapshot(&two).await.expect("removed");
        fixture.backend.remove_snapshot(&two).await.expect("twice is no error");
        bottle.remove().await;
        for (snapshot, changed) in [(&one, "one"), (&three, "three")] {
            let again = fixture.bottle_from("several", Origin::Snapshot(snapshot.clone())).await;
            let channel = again.provisioned().await;
            for (name, content) in [("same", "same"), ("gone", "gone"), ("changed", changed)] {
                assert_eq!(read(&channel, name).await.as_deref(), Some(content), "{} {name}", fixture.name());
            }
            again.remove().await;
        }
        let prepared = fixture.prepared().await.expect("prepared");
        let gone = bottle_backend::Launch { origin: &Origin::Snapshot(two), ..bottle.launch() };
        fixture.backend.make_network(&gone).await.expect("network");
        let error = fixture.backend.start_guest(&gone, &prepared).await.expect_err("it is gone");
        assert!(error.one_line().contains("several"), "{}: {error}", fixture.name());
        bottle.remove().await;
        for snapshot in [one, three] {
            fixture.backend.remove_snapshot(&snapshot).await.expect("removed");
        }
        assert_eq!(fixture.backend.snapshots().await.expect("listed"), [], "{}", fixture.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_keeps_its_own_name_and_parent() {
    for fixture in every_backend().await {
        let bottle = fixture.bottle("names").await;
        let channel = bottle.provisioned().await;
        write(&channel, &in_workspace("file"), b"one").await;
        let new = NewSnapshot {
            name: Some("good".parse().expect("name")),
            parent: Some("earlier".to_owned()),
            ..NewSnapshot::default()
        };
        let frozen = fixture.backend.make_snapshot(bottle.slug(), &new, ProgressSink::discard()).await;
        let named = frozen.expect("frozen").snapshot;
        assert_eq!((&named.name, &named.parent), (&new.name, &new.parent), "{}", fixture.name());
        bottle.remove().await;
        // A later snapshot does not inherit the name and the parent of the snapshot from which the bottle was started.
        let again = fixture.bottle_from("names", Origin::Snapshot(named.clone())).await;
        let _channel = again.provisioned().await;
        let plain = again.make_snapshot(None).await;
        assert_eq!((&plain.name, &plain.parent), (&None, &None), "{}", fixture.name());
        let listed = fixture.backend.snapshots().await.expect("listed");
        assert_eq!(listed, [named.clone(), plain.clone()], "{}", fixture.name());
        again.remove().await;
        for snapshot in [named, plain] {
            fixture.backend.remove_snapshot(&snapshot).await.expect("removed");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_snapshot_excludes_deleted_files() {
    for fixture in every_backend().await {
        if fixture.name() == "fake" {
            // The fake backend has no program that deletes files.
            continue;
        }
        let bottle = fixture.bottle("deleted").await;
        bottle.shell("mkdir -p ~/a/b; echo x >~/a/b/c; echo y >~/d; ln -s d ~/e").await;
        let one = bottle.make_snapshot(None).await;
        let channel = bottle.connect().await;
        run(&channel, &["/bin/sh", "-c", "rm -rf ~/a ~/d; echo z >/home/agent/e"]).await.expect("ran");
        let two = bottle.make_snapshot(Some(&one)).await;
        bottle.remove().await;
        let again = fixture.bottle_from("deleted", Origin::Snapshot(two)).await;
        let output = again.shell("cd /home/agent; ls -A; cat e").await;
        let names: Vec<&str> = output.lines().collect();
        // The home in an image may contain files of the image.
        assert!(!names.contains(&"a") && names.ends_with(&["z"]), "{}: {output}", fixture.name());
        again.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_bottle_is_frozen_and_resumed() {
    for fixture in every_backend().await {
        let bottle = fixture.bottle("kept-on").await;
        let channel = bottle.provisioned().await;
        write(&channel, &in_workspace("work"), b"half done").await;
        write(&channel, &in_home("note"), b"remember").await;
        bottle.stop().await;
        let snapshot = bottle.make_snapshot(None).await;

        let again = fixture.bottle_from("kept-on", Origin::Kept).await;
        let channel = again.provisioned().await;
        assert_eq!(read(&channel, "work").await.as_deref(), Some("half done"), "{}", fixture.name());
        let note = read(&channel, &in_home("note")).await;
        assert!(
            fixture.name() == "fake" || note.as_deref() == Some("remember"),
            "{}: {note:?}",
            fixture.name()
        );
        write(&channel, &in_workspace("work"), b"ruined").await;
        again.stop().await;

        // A resume from the snapshot replaces the kept files.
        let back = fixture.bottle_from("kept-on", Origin::Snapshot(snapshot)).await;
        let channel = back.provisioned().await;
        assert_eq!(read(&channel, "work").await.as_deref(), Some("half done"), "{}", fixture.name());
        back.remove().await;
        assert_eq!(back.found().await, [], "{}", fixture.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn freezing_a_missing_bottle_fails_and_leaves_nothing() {
    for fixture in every_backend().await {
        let bottle = fixture.planned("nothing");
        let error = fixture
            .backend
            .make_snapshot(bottle.slug(), &NewSnapshot::default(), ProgressSink::discard())
            .await
            .expect_err("nothing there");
        assert!(error.one_line().contains("nothing"), "{}: {error}", fixture.name());
        assert_eq!(fixture.backend.snapshots().await.expect("listed"), [], "{}", fixture.name());
        assert_eq!(bottle.found().await, [], "{}", fixture.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hides_snapshots_of_other_homes_and_refuses_invalid_names() {
    let fixtures = every_backend().await;
    for fixture in &fixtures {
        let bottle = fixture.bottle("mine-too").await;
        let snapshot = bottle.make_snapshot(None).await;
        for other in &fixtures {
            if !std::ptr::eq(other, fixture) {
                assert_eq!(other.backend.snapshots().await.expect("listed"), [], "{}", other.name());
            }
        }
        for reference in ["", "..", "../mine-too", "/etc", ".new-1"] {
            let foreign = Snapshot { reference: reference.to_owned(), ..snapshot.clone() };
            let error = fixture.backend.remove_snapshot(&foreign).await.expect_err(reference);
            assert_eq!(error.kind, BackendErrorKind::Failed, "{} {reference}", fixture.name());
        }
        assert_eq!(fixture.backend.snapshots().await.expect("listed"), std::slice::from_ref(&snapshot));
        fixture.backend.remove_snapshot(&snapshot).await.expect("removed");
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_git_objects_stay_as_they_were_and_are_part_of_a_snapshot() {
    for fixture in every_backend().await {
        let objects = fixture.host.user_home.join("objects");
        let pack = format!("pack/pack-{}.pack", "0a".repeat(20));
        std::fs::create_dir_all(objects.join("pack")).expect("directory");
        std::fs::write(objects.join(&pack), "objects").expect("a pack");
        let opened = Arc::new(Directory::open(&objects).expect("opened"));
        let repository = RepositoryObjects { from: opened, borrowed: Vec::new(), directory: None };
        let mut bottle = fixture.planned("shared");
        bottle.plan.workspace = Workspace::Copy;
        bottle.prepared = fixture.prepared().await.expect("prepared");
        bottle.begin().await;
        let shared = fixture.backend.share_objects(&bottle.launch(), &repository).await.expect("shared");
        assert!(shared || fixture.name() != "linux", "an engine may not see the directories of this machine");
        if !shared {
            bottle.remove().await;
            continue;
        }
        std::fs::remove_file(objects.join(&pack)).expect("removed");
        std::fs::write(objects.join(pack.replace("0a", "0b")), "later").expect("a new pack");
        let show =
            format!("cat {GIT_OBJECTS_DIR}/pack/*; chmod 666 {GIT_OBJECTS_DIR}/{pack} || echo refused");
        let seen = bottle.shell(&show).await;
        assert!(seen.contains("objects") && !seen.contains("later") && seen.contains("refused"), "{seen}");
        let snapshot = bottle.make_snapshot(None).await;
        bottle.remove().await;
        let again = fixture.bottle_from("again", Origin::Snapshot(snapshot.clone())).await;
        let seen = again.shell(&show).await;
        assert!(seen.contains("objects") && !seen.contains("later") && seen.contains("refused"), "{seen}");
        again.remove().await;
        fixture.backend.remove_snapshot(&snapshot).await.expect("removed");
        assert_eq!(bottle.found().await, [], "{}", fixture.name());
    }
}
