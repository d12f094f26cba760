//! Questions from a daemon through a bundle to a keeper, over real channels.

use std::time::Duration;

use bottle_channel::{Channel, Incoming, Side};
use bottle_contract::queue::{Answer, Question, Tool};
use bottle_contract::session::bundle::{BundleEvent, BundleRequest};
use bottle_contract::session::{Hello, Role};
use bottle_queue::{Questions, carry, question};

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

/// Whoever has these questions answers requests for them on a channel.
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

/// A daemon's and a bundle's questions, one carried to the other.
async fn daemon_and_bundle() -> (Questions, Questions) {
    let (daemon, bundle) = (Questions::default(), Questions::default());
    let (to_daemon, of_daemon) = pair().await;
    serve(&daemon, of_daemon);
    let passed_on = bundle.clone();
    tokio::spawn(async move {
        let ask = |question| {
            let bundle = passed_on.clone();
            async move { bundle.ask(question).await }
        };
        carry(&to_daemon, ask).await;
    });
    (daemon, bundle)
}

fn ask(text: &str, wait: Duration) -> Question {
    question(Tool::GitleaksAllow, text.to_owned(), String::new(), wait)
}

#[tokio::test]
async fn a_question_goes_through_and_its_answer_comes_back() {
    let (daemon, bundle) = daemon_and_bundle().await;
    let (to_bundle, of_bundle) = pair().await;
    serve(&bundle, of_bundle);
    tokio::spawn(async move {
        carry(&to_bundle, |question: Question| async move { Answer::Refused(question.proposed_file) }).await;
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
async fn a_keeper_that_goes_leaves_its_question_to_the_next() {
    let (daemon, bundle) = daemon_and_bundle().await;
    let asked = tokio::spawn(async move { daemon.ask(ask("x", PATIENCE)).await });
    let (first, of_bundle) = pair().await;
    serve(&bundle, of_bundle);
    let mut stream = first.open(&BundleRequest::Question).await.expect("a stream");
    let BundleEvent::Asked(question) = stream.receive().await.expect("a question") else { panic!("asked") };
    drop((stream, first));
    let (second, of_bundle) = pair().await;
    serve(&bundle, of_bundle);
    tokio::spawn(async move {
        carry(&second, |question: Question| async move { Answer::Refused(question.id.to_string()) }).await;
    });
    assert_eq!(asked.await.expect("asked"), Answer::Refused(question.id.to_string()));
}

#[tokio::test]
async fn a_question_nobody_carries_expires_and_one_taken_back_is_not_carried() {
    let questions = Questions::default();
    let never = questions.ask(ask("x", Duration::ZERO));
    assert_eq!(never.await, Answer::Expired);
    let given_up = tokio::time::timeout(Duration::from_millis(20), questions.ask(ask("y", PATIENCE))).await;
    assert!(given_up.is_err());
    let (keeper, of_daemon) = pair().await;
    serve(&questions, of_daemon);
    tokio::spawn(async move {
        carry(&keeper, |question: Question| async move { Answer::Refused(question.proposed_file) }).await;
    });
    assert_eq!(questions.ask(ask("z", PATIENCE)).await, Answer::Refused("z".to_owned()));
}
