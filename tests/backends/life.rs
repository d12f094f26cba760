//! What is made, found again, and removed.

use bottle::backend::{BackendErrorKind, LAYERS};
use bottle_contract::session::guest::{AgentState, GuestEvent, GuestRequest};

use crate::stand::{every_backend, run};

#[tokio::test(flavor = "multi_thread")]
async fn nothing_runs_before_it_is_provisioned() {
    for stand in every_backend().await {
        let bottle = stand.bottle("early").await;
        let channel = bottle.connect().await;
        let mut stream = channel.open(&GuestRequest::Status).await.expect("open");
        match stream.receive::<GuestEvent>().await.expect("answer") {
            GuestEvent::Status { agent, .. } => assert_eq!(agent, AgentState::Waiting, "{}", stand.name()),
            other => panic!("{}: {other:?}", stand.name()),
        }
        let refused = run(&channel, &["true"]).await;
        assert!(matches!(refused, Err(GuestEvent::Failed(_))), "{}: {refused:?}", stand.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pid_1_can_be_connected_to_again_by_another_process() {
    for stand in every_backend().await {
        let bottle = stand.bottle("again").await;
        let first = bottle.provisioned().await;
        first.close();
        let again = bottle.connect().await;
        let (output, _) = run(&again, &["echo", "still here"]).await.expect("ran");
        assert_eq!(output, "still here\n", "{}", stand.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_ledger_lost_is_found_by_its_label() {
    for stand in every_backend().await {
        let bottle = stand.bottle("lost").await;
        let found = bottle.found().await;
        let recorded = bottle.ledger.all();
        assert!(recorded.iter().all(|resource| found.contains(resource)), "{} {found:?}", stand.name());
        // This one was begun without a bundle; where its process waits to be told what it is, no ledger has it yet.
        let more: Vec<_> = found.iter().filter(|resource| !recorded.contains(resource)).collect();
        let waits = usize::from(stand.name() != "docker");
        assert!(more.len() == waits && more.iter().all(|more| more.kind == "bundle-process"), "{more:?}");
        assert!(found.iter().any(|resource| resource.kind == "guest-process"), "{}", stand.name());

        stand.backend.remove(&found).await.expect("removed by what was found");
        assert_eq!(bottle.found().await, [], "{}", stand.name());
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_home_or_backend_never_sees_it() {
    let stands = every_backend().await;
    for stand in &stands {
        let bottle = stand.bottle("mine").await;
        for other in &stands {
            if other.name() != stand.name() {
                let mut other_here = stand.host.clone();
                other_here.env.clear();
                let backend = bottle::backend::registry::by_name(&other_here, other.name()).expect("backend");
                assert_eq!(backend.enumerate().await.expect("enumerated"), [], "{}", other.name());
            }
            if !std::ptr::eq(other, stand) {
                let found = other.backend.enumerate().await.expect("enumerated");
                assert!(found.iter().all(|resource| resource.slug.as_str() != "mine"), "{found:?}");
            }
        }
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn removing_twice_is_no_error_and_leaves_nothing() {
    for stand in every_backend().await {
        let bottle = stand.bottle("twice").await;
        let all = bottle.ledger.all();
        stand.backend.remove(&all).await.expect("removed");
        stand.backend.remove(&all).await.expect("removed again");
        assert_eq!(stand.backend.enumerate().await.expect("enumerated"), [], "{}", stand.name());
        assert!(stand.backend.connect_guest(bottle.slug()).await.is_err(), "{}", stand.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_bottle_keeps_its_layers_when_they_are_not_named() {
    for stand in every_backend().await {
        let bottle = stand.bottle("kept").await;
        let kept = stand.backend.kept_workspace(bottle.slug());
        let mut all = bottle.ledger.all();
        all.retain(|resource| resource.kind != LAYERS);
        stand.backend.remove(&all).await.expect("removed");
        assert!(kept.iter().all(|folder| folder.is_dir()), "{}", stand.name());
        let found = bottle.found().await;
        assert!(found.iter().all(|resource| resource.kind == LAYERS), "{}: {found:?}", stand.name());
        assert_eq!(found.len(), 1, "{}", stand.name());
        bottle.remove().await;
        assert!(!kept.is_some_and(|folder| folder.exists()), "{}", stand.name());
        assert_eq!(bottle.found().await, [], "{}", stand.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_its_own_is_not_removed() {
    for stand in every_backend().await {
        let bottle = stand.bottle("own").await;
        let precious = stand.host.home.join("precious");
        std::fs::create_dir_all(&precious).expect("made");
        let mut foreign = bottle.ledger.all().into_iter().find(|r| r.kind == LAYERS).expect("layers");
        foreign.id = precious.display().to_string();
        let error = stand.backend.remove(&[foreign]).await.expect_err("refused");
        assert_eq!(error.kind, BackendErrorKind::Failed);
        assert!(precious.is_dir(), "{}", stand.name());
        bottle.remove().await;
    }
}
