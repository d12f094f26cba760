//! Tests the creation, enumeration and removal of resources.

use std::time::Duration;

use bottle_backend::{BackendErrorKind, LAYERS};
use bottle_protocol::session::guest::{AgentState, GuestEvent, GuestRequest, Process};

use crate::fixture::{close, every_backend, every_isolating_backend, read, run, write};

#[tokio::test(flavor = "multi_thread")]
async fn nothing_runs_before_it_is_provisioned() {
    for fixture in every_backend().await {
        let bottle = fixture.bottle("early").await;
        let channel = bottle.connect().await;
        let mut stream = channel.open(&GuestRequest::Status).await.expect("open");
        match stream.receive::<GuestEvent>().await.expect("answer") {
            GuestEvent::Status { agent, .. } => assert_eq!(agent, AgentState::Waiting, "{}", fixture.name()),
            other => panic!("{}: {other:?}", fixture.name()),
        }
        let refused = run(&channel, &["true"]).await;
        assert!(matches!(refused, Err(GuestEvent::Failed(_))), "{}: {refused:?}", fixture.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pid_1_can_be_connected_to_again_by_another_process() {
    for fixture in every_backend().await {
        let bottle = fixture.bottle("again").await;
        let first = bottle.provisioned().await;
        close(first).await;
        let again = bottle.connect().await;
        let (output, _) = run(&again, &["echo", "still here"]).await.expect("ran");
        assert_eq!(output, "still here\n", "{}", fixture.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_stops_every_process_and_they_go_on_where_they_were() {
    for fixture in every_isolating_backend().await {
        let bottle = fixture.bottle("paused").await;
        let channel = bottle.provisioned().await;
        // Three processes append lines to files: the started process, its child, and a process that another child left
        // behind.
        let script = "(while :; do echo x >> one; sleep 0.02; done) & \
                      (setsid sh -c 'while :; do echo x >> two; sleep 0.02; done' &) ; \
                      while :; do echo x >> three; sleep 0.02; done";
        let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
        let process = Process { argv, ..Process::default() };
        let _running = channel.open(&GuestRequest::Exec(process)).await.expect("open");
        // A process that starts in a paused bottle runs.
        let count = "for file in one two three; do cat $file 2> /dev/null | wc -l; done";
        let counts = async || {
            let (text, _) = run(&channel, &["sh", "-c", count]).await.expect("ran");
            let numbers = text.split_whitespace().map(|count| count.parse().expect(&text));
            numbers.collect::<Vec<u64>>()
        };
        let order = |request: GuestRequest| {
            let channel = channel.clone();
            async move {
                let mut stream = channel.open(&request).await.expect("open");
                assert_eq!(stream.receive::<GuestEvent>().await.expect("answer"), GuestEvent::Done);
            }
        };
        let grows = async |than: &[u64]| {
            for _ in 0..500 {
                let now = counts().await;
                if now.len() == 3 && now.iter().zip(than).all(|(now, before)| now > before) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            panic!("{}: the processes do not go on", fixture.name());
        };
        grows(&[0; 3]).await;
        order(GuestRequest::Pause).await;
        let paused = counts().await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(counts().await, paused, "{}", fixture.name());
        order(GuestRequest::Continue).await;
        grows(&paused).await;
        // A paused bottle can be stopped.
        order(GuestRequest::Pause).await;
        bottle.stop().await;
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn finds_unrecorded_resources_by_label() {
    for fixture in every_backend().await {
        let bottle = fixture.bottle("lost").await;
        let found = bottle.found().await;
        let recorded = bottle.resources.all();
        assert!(recorded.iter().all(|resource| found.contains(resource)), "{} {found:?}", fixture.name());
        // This bottle has no bundle. A process that was started in advance and waits for its specification is not in a
        // resource log yet.
        let more: Vec<_> = found.iter().filter(|resource| !recorded.contains(resource)).collect();
        let waits = usize::from(!fixture.is_contained());
        assert!(more.len() == waits && more.iter().all(|more| more.kind == "bundle-process"), "{more:?}");
        assert!(found.iter().any(|resource| resource.kind == "guest-process"), "{}", fixture.name());

        fixture.backend.remove(&found).await.expect("removed by what was found");
        assert_eq!(bottle.found().await, [], "{}", fixture.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_homes_and_backends_do_not_see_a_bottle() {
    let fixtures = every_backend().await;
    for fixture in &fixtures {
        let bottle = fixture.bottle("mine").await;
        for other in &fixtures {
            if other.name() != fixture.name() {
                let mut other_here = fixture.host.clone();
                other_here.env.clear();
                let backend = bottle_lib::registry::by_name(&other_here, other.name()).expect("backend");
                assert_eq!(backend.enumerate().await.expect("enumerated"), [], "{}", other.name());
            }
            if !std::ptr::eq(other, fixture) {
                let found = other.backend.enumerate().await.expect("enumerated");
                assert!(found.iter().all(|resource| resource.slug.as_str() != "mine"), "{found:?}");
            }
        }
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn removal_can_be_repeated_and_leaves_nothing() {
    for fixture in every_backend().await {
        let bottle = fixture.bottle("twice").await;
        let all = bottle.resources.all();
        fixture.backend.remove(&all).await.expect("removed");
        fixture.backend.remove(&all).await.expect("removed again");
        assert_eq!(fixture.backend.enumerate().await.expect("enumerated"), [], "{}", fixture.name());
        assert!(fixture.backend.connect_guest(bottle.slug()).await.is_err(), "{}", fixture.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_bottle_keeps_its_layers_when_they_are_not_named() {
    for fixture in every_backend().await {
        let bottle = fixture.bottle("kept").await;
        let kept = fixture.backend.kept_workspace(bottle.slug());
        let mut all = bottle.resources.all();
        all.retain(|resource| resource.kind != LAYERS);
        fixture.backend.remove(&all).await.expect("removed");
        assert!(kept.iter().all(|directory| directory.is_dir()), "{}", fixture.name());
        let found = bottle.found().await;
        assert!(found.iter().all(|resource| resource.kind == LAYERS), "{}: {found:?}", fixture.name());
        assert_eq!(found.len(), 1, "{}", fixture.name());
        bottle.remove().await;
        assert!(!kept.is_some_and(|directory| directory.exists()), "{}", fixture.name());
        assert_eq!(bottle.found().await, [], "{}", fixture.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_to_remove_foreign_resources() {
    for fixture in every_backend().await {
        let bottle = fixture.bottle("own").await;
        let precious = fixture.host.home.join("precious");
        std::fs::create_dir_all(&precious).expect("made");
        let mut foreign = bottle.resources.all().into_iter().find(|r| r.kind == LAYERS).expect("layers");
        foreign.id = precious.display().to_string();
        let error = fixture.backend.remove(&[foreign]).await.expect_err("refused");
        assert_eq!(error.kind, BackendErrorKind::Failed);
        assert!(precious.is_dir(), "{}", fixture.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_moved_away_free_their_name() {
    for fixture in every_backend().await {
        let bottle = fixture.bottle("moved").await;
        write(&bottle.provisioned().await, "/workspace/file", b"mine").await;
        let all: Vec<_> = bottle.found().await.into_iter().chain(bottle.resources.all()).collect();
        let moved = fixture.backend.move_away(&all).await.expect("moved");
        assert_eq!(bottle.found().await, moved, "{}", fixture.name());
        assert!(moved.iter().all(|resource| resource.kind != LAYERS), "{}: {moved:?}", fixture.name());
        assert_eq!(
            moved.len(),
            usize::from(matches!(fixture.name(), "linux" | "smolvm")),
            "{}: {moved:?}",
            fixture.name()
        );
        if let Some(directory) = moved.first() {
            // Cleanup skips a directory that another process is removing.
            let lock = std::fs::File::open(&directory.id).expect("directory");
            lock.lock().expect("locked");
            assert_eq!(bottle.found().await, [], "{}", fixture.name());
        }
        let again = fixture.bottle("moved").await;
        let found = read(&again.provisioned().await, "/workspace/file").await;
        assert_eq!(found, None, "{}", fixture.name());
        // Two concurrent removals both succeed.
        let removals =
            tokio::join!(fixture.backend.remove(&moved), async { fixture.backend.remove(&moved).await });
        assert!(removals.0.is_ok() && removals.1.is_ok(), "{}: {removals:?}", fixture.name());
        again.remove().await;
        assert_eq!(again.found().await, [], "{}", fixture.name());
    }
}
