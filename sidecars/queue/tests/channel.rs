//! Tests questions that a daemon sends through a bundle to a keeper, over real channels.

use std::time::Duration;

use bottle_channel::{Channel, Incoming, Side};
use bottle_protocol::queue::{Answer, MAX_TEXT, Question, Tool};
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest};
use bottle_protocol::session::{Hello, Role};
use bottle_queue::{Questions, forward, question};

const PATIENCE: Duration = Duration::from_secs(20);

async fn pair() -> (Channel, (Channel, Incoming)) {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (dialed, accepted) = tokio::join!(
        Channel::establish(ours, Side::Dialed, Hello::of(Role::Keeper)),
        Channel::establish(theirs, Side::Accepted, Hello::of(Role::Bundle)),
    );
    let (dialed, accepted) = (dialed.expect("dialed"), accepted.expect("accepted"));
    (dialed.0, (accepted.0, accepted.1))
}

/// Serves the requests of a peer on a channel by sending `questions`.
fn serve(questions: &Questions, (channel, mut incoming): (Channel, Incoming)) {
    let questions = questions.clone();
    tokio::spawn(async move {
        let _channel = channel;
        while let Some(request) = incoming.next().await {
            assert_eq!(request.parse::<BundleRequest>().expect("request"), BundleRequest::Question);
            let questions = questions.clone();
            tokio::spawn(async move { questions.serve(request.accept()).await });
        }
    });
}

/// Returns the pending questions of a daemon and of a bundle. The daemon's questions are forwarded to the bundle.
async fn daemon_and_bundle() -> (Questions, Questions) {
    let (daemon, bundle) = (Questions::default(), Questions::default());
    let (to_daemon, daemon_side) = pair().await;
    serve(&daemon, daemon_side);
    let forwarded = bundle.clone();
    tokio::spawn(async move {
        let ask = |question| {
            let bundle = forwarded.clone();
            async move { bundle.ask(question).await }
        };
        forward(&to_daemon, ask).await;
    });
    (daemon, bundle)
}

fn ask(text: &str, wait: Duration) -> Question {
    question(Tool::GitleaksAllow, text.to_owned(), String::new(), wait)
}

#[tokio::test]
async fn forwards_a_question_and_returns_its_answer() {
    let (daemon, bundle) = daemon_and_bundle().await;
    let (to_bundle, bundle_side) = pair().await;
    serve(&bundle, bundle_side);
    tokio::spawn(async move {
        forward(&to_bundle, |question: Question| async move { Answer::Refused(question.proposed_file) })
            .await;
    });
    let asked = (0..20).map(|n| {
        let daemon = daemon.clone();
        tokio::spawn(async move { daemon.ask(ask(&n.to_string(), PATIENCE)).await })
    });
    for (n, asked) in asked.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(asked.await.expect("asked"), Answer::Refused(n.to_string()));
    }
}

#[tokio::test]
async fn the_next_keeper_gets_the_question_of_a_disconnected_one() {
    let (daemon, bundle) = daemon_and_bundle().await;
    let asked = tokio::spawn(async move { daemon.ask(ask("x", PATIENCE)).await });
    let (first, bundle_side) = pair().await;
    serve(&bundle, bundle_side);
    let mut stream = first.open(&BundleRequest::Question).await.expect("a stream");
    let BundleEvent::Asked(question) = stream.receive().await.expect("a question") else { panic!("asked") };
    drop((stream, first));
    let (second, bundle_side) = pair().await;
    serve(&bundle, bundle_side);
    tokio::spawn(async move {
        forward(&second, |question: Question| async move { Answer::Refused(question.id.to_string()) }).await;
    });
    assert_eq!(asked.await.expect("asked"), Answer::Refused(question.id.to_string()));
}

#[tokio::test]
async fn expires_without_a_keeper_and_does_not_forward_a_withdrawn_question() {
    let questions = Questions::default();
    let never = questions.ask(ask("x", Duration::ZERO));
    assert_eq!(never.await, Answer::Expired);
    let withdrawn = tokio::time::timeout(Duration::from_millis(20), questions.ask(ask("y", PATIENCE))).await;
    assert!(withdrawn.is_err());
    let (keeper, daemon_side) = pair().await;
    serve(&questions, daemon_side);
    tokio::spawn(async move {
        forward(&keeper, |question: Question| async move { Answer::Refused(question.proposed_file) }).await;
    });
    assert_eq!(questions.ask(ask("z", PATIENCE)).await, Answer::Refused("z".to_owned()));
}

#[tokio::test]
async fn refuses_long_questions_and_more_than_32() {
    let questions = Questions::default();
    let long = questions.ask(ask(&"x".repeat(MAX_TEXT + 1), PATIENCE)).await;
    assert!(matches!(&long, Answer::Refused(why) if why.contains("too long")), "{long:?}");
    let mut waiting: Vec<_> =
        (0..32).map(|n| Box::pin(questions.ask(ask(&n.to_string(), PATIENCE)))).collect();
    for asked in &mut waiting {
        assert!(tokio::time::timeout(Duration::ZERO, asked).await.is_err(), "it waits");
    }
    let more = questions.ask(ask("more", PATIENCE)).await;
    assert!(matches!(&more, Answer::Refused(why) if why.contains("too many")), "{more:?}");
    // When a question is withdrawn, another question can be asked.
    drop(waiting.pop());
    let next = tokio::time::timeout(Duration::from_millis(20), questions.ask(ask("next", PATIENCE))).await;
    assert!(next.is_err(), "{next:?}");
}

/// If a peer refuses a request for a question, the request is repeated after a pause.
#[tokio::test]
async fn asks_a_peer_again_that_refused_once() {
    let (keeper, (channel, mut incoming)) = pair().await;
    let questions = Questions::default();
    let served = questions.clone();
    tokio::spawn(async move {
        let _channel = channel;
        let refused = incoming.next().await.expect("a request");
        refused.refuse("not ready").await;
        let request = incoming.next().await.expect("a second request");
        served.serve(request.accept()).await;
    });
    tokio::spawn(async move {
        forward(&keeper, |question: Question| async move { Answer::Refused(question.proposed_file) }).await;
    });
    assert_eq!(questions.ask(ask("z", PATIENCE)).await, Answer::Refused("z".to_owned()));
}
