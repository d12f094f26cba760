//! `supervise`: a request waits for a user, whose answer counts for that value and that host alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bottle_channel::{Channel, Side};
use bottle_contract::decide::Reason;
use bottle_contract::queue::{Answer, Question, Response, Scope, Status};
use bottle_contract::session::bundle::Provision;
use bottle_contract::session::{Hello, Role};
use bottle_queue::forward;
use bottle_test_support::upstream::Site;
use tokio::sync::watch;

use super::fixture::{ProxyFixture, REAL, SITE, Wanted};

const TOKEN: &str = "glpat-Xk3Vw9QzR7tYp2LmNb5c";
const OTHER_TOKEN: &str = "glpat-Qm8Ht4WxD1sUf6KjGv3z";

/// A user who answers every question at once with `status`; counts them.
async fn user(proxy: &ProxyFixture, status: Status) -> Arc<AtomicUsize> {
    user_after(proxy, status, watch::channel(true).1).await
}

/// The same, who answers nothing before `ready` says so.
pub(super) async fn user_after(
    proxy: &ProxyFixture,
    status: Status,
    ready: watch::Receiver<bool>,
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
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let keeper = keeper.expect("keeper").0;
    tokio::spawn(async move {
        forward(&keeper, |question: Question| {
            counted.fetch_add(1, Ordering::SeqCst);
            for secret in [TOKEN, OTHER_TOKEN, REAL] {
                assert!(!format!("{question:?}").contains(secret), "{question:?}");
            }
            let mut ready = ready.clone();
            async move {
                // One that can never come any more is as good.
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
    asked
}

async fn proxy(change: fn(&mut Provision)) -> ProxyFixture {
    let more_routes = "- host: other.example.com\n  connect_to: '127.0.0.1:{site}'\n";
    let site = Site::named(&[SITE, "other.example.com"]);
    ProxyFixture::with(Wanted { site, more_routes, change, ..Wanted::default() }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_counts_for_that_value_and_host() {
    let proxy = proxy(|provision| provision.ask_seconds = Some(60)).await;
    let asked = user(&proxy, Status::Approved).await;
    let said = format!("token = {TOKEN}");
    for (url, said, expected, questions) in [
        ("https://api.example.com/a", said.as_str(), 200, 1),
        // Remembered, wherever in a request it stands.
        ("https://api.example.com/a", &format!("{{\"x\":\"{TOKEN}\"}}"), 200, 1),
        ("https://other.example.com/a", &said, 200, 2),
        ("https://api.example.com/a", OTHER_TOKEN, 200, 3),
        // Nobody is asked about what the proxy itself puts in.
        ("https://api.example.com/a", REAL, 403, 3),
    ] {
        let answer = proxy.curl(&["-d", said, url]).await;
        assert_eq!((answer.status(), asked.load(Ordering::SeqCst)), (expected, questions), "{url} {said}");
    }
    let answer = proxy.curl(&["-H", &format!("X-Note: {TOKEN}"), "https://api.example.com/a"]).await;
    assert_eq!((answer.status(), asked.load(Ordering::SeqCst)), (200, 3));
    assert_eq!(proxy.site.visits().len(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_no_and_no_answer_are_no() {
    let no = proxy(|provision| provision.ask_seconds = Some(60)).await;
    user(&no, Status::Rejected).await;
    let answer = no.curl(&["-d", TOKEN, "https://api.example.com/a"]).await;
    let told = answer.json();
    assert_eq!(told["reason"], "approval-rejected");
    assert!(told["sentence"].as_str().expect("sentence").contains("because I say so"), "{told}");
    let nobody = proxy(|provision| provision.ask_seconds = Some(0)).await;
    let answer = nobody.curl(&["-d", TOKEN, "https://api.example.com/a"]).await;
    assert_eq!(answer.header("x-bottle-reason").as_deref(), Some("approval-timeout"));
    assert_eq!(nobody.refusal().await.reason, Reason::ApprovalTimeout);
    assert!(no.site.visits().is_empty() && nobody.site.visits().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_one_waits_others_pass_and_a_client_that_hung_up_is_answered_next_time() {
    let proxy = proxy(|provision| provision.ask_seconds = Some(60)).await;
    let gave_up = proxy.curl(&["--max-time", "1", "-d", TOKEN, "https://api.example.com/a"]).await;
    assert!(gave_up.error().contains("timed out"), "{}", gave_up.error());
    assert_eq!(proxy.curl(&["https://api.example.com/b"]).await.status(), 200);
    let asked = user(&proxy, Status::Approved).await;
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while asked.load(Ordering::SeqCst) == 0 {
        assert!(std::time::Instant::now() < until, "the question was taken back");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let answer = proxy.curl(&["-d", TOKEN, "https://api.example.com/a"]).await;
    assert_eq!(answer.status(), 200);
}
