//! The action `supervise`: a request with a finding waits for the user. The user's approval covers only the found value
//! and the host of the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bottle_channel::{Channel, Side};
use bottle_policy::decide::Reason;
use bottle_protocol::queue::{Answer, Question, Response, Scope, Status};
use bottle_protocol::session::bundle::Provision;
use bottle_protocol::session::{Hello, Role};
use bottle_queue::forward;
use bottle_test_support::upstream::Site;
use tokio::sync::watch;

use super::fixture::{FixtureOptions, ProxyFixture, REAL, SITE};

const TOKEN: &str = "glpat-Xk3Vw9QzR7tYp2LmNb5c";
const OTHER_TOKEN: &str = "glpat-Qm8Ht4WxD1sUf6KjGv3z";

/// Answers every question immediately with `status`. Returns the number of questions.
async fn user(proxy: &ProxyFixture, status: Status) -> Arc<AtomicUsize> {
    user_after(proxy, status, watch::channel(true).1).await
}

/// Like [`user`], but answers only after `ready`.
pub(super) async fn user_after(
    proxy: &ProxyFixture,
    status: Status,
    ready: watch::Receiver<bool>,
) -> Arc<AtomicUsize> {
    answering(proxy, status, ready, |_| {}).await
}

/// Like [`user`], but first passes each question to `seen`.
async fn user_who_sees(
    proxy: &ProxyFixture,
    status: Status,
    seen: impl Fn(&Question) + Send + Sync + 'static,
) {
    answering(proxy, status, watch::channel(true).1, seen).await;
}

async fn answering(
    proxy: &ProxyFixture,
    status: Status,
    ready: watch::Receiver<bool>,
    seen: impl Fn(&Question) + Send + Sync + 'static,
) -> Arc<AtomicUsize> {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (keeper, daemon) = tokio::join!(
        Channel::establish(ours, Side::Dialed, Hello::of(Role::Keeper)),
        Channel::establish(theirs, Side::Accepted, Hello::of(Role::Egress)),
    );
    let (channel, mut incoming, _) = daemon.expect("daemon");
    let questions = proxy.questions.clone();
    tokio::spawn(async move {
        let _channel = channel;
        while let Some(request) = incoming.next().await {
            let questions = questions.clone();
            tokio::spawn(async move { questions.serve(request.accept()).await });
        }
    });
    let question_count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&question_count);
    let keeper = keeper.expect("keeper").0;
    tokio::spawn(async move {
        forward(&keeper, |question: Question| {
            counter.fetch_add(1, Ordering::SeqCst);
            for secret in [TOKEN, OTHER_TOKEN, REAL] {
                assert!(!format!("{question:?}").contains(secret), "{question:?}");
            }
            seen(&question);
            let mut ready = ready.clone();
            async move {
                // If the sender was dropped, the user is ready too.
                let _ = ready.wait_for(|ready| *ready).await;
                Answer::Decided(Box::new(Response {
                    proposal_id: question.id,
                    status,
                    notes: Some("because I say so".to_owned()),
                    final_file: None,
                    decided_at: jiff::Timestamp::now(),
                    scope: Scope::Run,
                    decided_by: "somebody".to_owned(),
                }))
            }
        })
        .await;
    });
    question_count
}

async fn proxy(change: fn(&mut Provision)) -> ProxyFixture {
    let more_routes = "- host: other.example.com\n  connect_to: '127.0.0.1:{site}'\n";
    let site = Site::named(&[SITE, "other.example.com"]);
    ProxyFixture::with(FixtureOptions { site, more_routes, change, ..FixtureOptions::default() }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_covers_one_value_and_host() {
    let proxy = proxy(|provision| provision.ask_seconds = Some(60)).await;
    let question_count = user(&proxy, Status::Approved).await;
    let text = format!("token = {TOKEN}");
    for (url, text, expected, questions) in [
        ("https://api.example.com/a", text.as_str(), 200, 1),
        // The cached approval applies to the same value at any position in a request to the same host.
        ("https://api.example.com/a", &format!("{{\"x\":\"{TOKEN}\"}}"), 200, 1),
        ("https://other.example.com/a", &text, 200, 2),
        ("https://api.example.com/a", OTHER_TOKEN, 200, 3),
        // The user is not asked about the injected credential.
        ("https://api.example.com/a", REAL, 403, 3),
    ] {
        let answer = proxy.curl(&["-d", text, url]).await;
        assert_eq!(
            (answer.status(), question_count.load(Ordering::SeqCst)),
            (expected, questions),
            "{url} {text}"
        );
    }
    let answer = proxy.curl(&["-H", &format!("X-Note: {TOKEN}"), "https://api.example.com/a"]).await;
    assert_eq!((answer.status(), question_count.load(Ordering::SeqCst)), (200, 3));
    assert_eq!(proxy.site.visits().len(), 5);
}

/// A question shows the request line and the text around the finding, and no part of the value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_has_an_excerpt_without_the_value() {
    let proxy = proxy(|provision| provision.ask_seconds = Some(60)).await;
    let (sender, mut excerpts) = tokio::sync::mpsc::channel(8);
    user_who_sees(&proxy, Status::Rejected, move |question| drop(sender.try_send(question.excerpt.clone())))
        .await;
    let note = format!("X-Note: see {TOKEN} here");
    for (arguments, expected) in [
        (
            &[
                "-d",
                &format!("{{\"title\": \"deploy\", \"text\": \"use {TOKEN}.\"}}"),
                "https://api.example.com/a?x=1",
            ][..],
            &[
                "POST https://api.example.com/a?x=1",
                "the body:",
                "  {\"title\": \"deploy\", \"text\": \"use [redacted]\"}",
            ][..],
        ),
        (
            &["-H", &note, "https://api.example.com/b"],
            &["GET https://api.example.com/b", "the header `x-note`:", "  x-note:see [redacted] here"],
        ),
        (
            &[&format!("https://api.example.com/c?q=1&key={TOKEN}&z=2")],
            &["GET https://api.example.com/c?q=1&key=redacted&z=2"],
        ),
    ] {
        assert_eq!(proxy.curl(arguments).await.status(), 403);
        assert_eq!(excerpts.recv().await.expect("a question"), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_after_a_rejection_or_a_timeout() {
    let rejected = proxy(|provision| provision.ask_seconds = Some(60)).await;
    user(&rejected, Status::Rejected).await;
    let answer = rejected.curl(&["-d", TOKEN, "https://api.example.com/a"]).await;
    let body = answer.json();
    assert_eq!(body["reason"], "approval-rejected");
    assert!(body["sentence"].as_str().expect("sentence").contains("because I say so"), "{body}");
    let unanswered = proxy(|provision| provision.ask_seconds = Some(0)).await;
    let answer = unanswered.curl(&["-d", TOKEN, "https://api.example.com/a"]).await;
    assert_eq!(answer.header("x-bottle-reason").as_deref(), Some("approval-timeout"));
    assert_eq!(unanswered.denial().await.reason, Reason::ApprovalTimeout);
    assert!(rejected.site.visits().is_empty() && unanswered.site.visits().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_approval_blocks_no_other_request_and_survives_a_disconnect() {
    let proxy = proxy(|provision| provision.ask_seconds = Some(60)).await;
    let gave_up = proxy.curl(&["--max-time", "1", "-d", TOKEN, "https://api.example.com/a"]).await;
    assert!(gave_up.error().contains("timed out"), "{}", gave_up.error());
    assert_eq!(proxy.curl(&["https://api.example.com/b"]).await.status(), 200);
    let question_count = user(&proxy, Status::Approved).await;
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while question_count.load(Ordering::SeqCst) == 0 {
        assert!(std::time::Instant::now() < until, "the question was taken back");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let answer = proxy.curl(&["-d", TOKEN, "https://api.example.com/a"]).await;
    assert_eq!(answer.status(), 200);
}
