//! The watcher of a detached bottle: a process that starts a new keeper when the bottle's keeper dies.
//!
//! ```text
//!  keeper ── starts ──► watcher ── one open stream ──► keeper
//!                          └─ the stream is lost: adopts the bottle as every command does
//! ```
//! Without a watcher, a bottle that lost its keeper would get no leases on its budget until the user's next command
//! adopts the bottle. The keeper and the watcher restart each other, so a bottle stays without a keeper only if both
//! die. An attached bottle has no watcher, because its client reports that the keeper died.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bottle_channel::{Request, Stream};
use bottle_host::{Host, causes};
use bottle_policy::names::Slug;

use super::client::{self, ClientError};
use super::protocol::{Inherited, KeeperEvent, KeeperRequest};
use super::shared::{Shared, send_last};

/// The role of the process on its command line.
pub const ROLE: &str = "__watcher";

/// How long a keeper waits for a watcher to connect before the keeper starts a watcher.
const CONNECTS_WITHIN: Duration = Duration::from_secs(1);

/// The maximum pause between two starts of a watcher, and between two starts of a keeper.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A keeper that ran for at least this time is not counted as a keeper that died soon after its start.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// The number of keepers in a row that may die earlier than [`STABLE_AFTER`] and are still replaced immediately. Before
/// it starts a further keeper, the watcher pauses, each time twice as long as the time before.
const SHORT_LIVES: u32 = 8;

/// Runs the watcher of the bottle `slug` until the bottle ends or cannot be adopted.
#[must_use]
pub fn run(host: &Host, slug: &Slug) -> ExitCode {
    // This process stores the keeper's secrets for the next keeper, so no other process may read its memory.
    if bottle_harden::process::seal().is_err() {
        return ExitCode::FAILURE;
    }
    // An error means that the process already leads a session.
    let _ = rustix::process::setsid();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(_) => return ExitCode::FAILURE,
    };
    runtime.block_on(watch(host, slug));
    ExitCode::SUCCESS
}

async fn watch(host: &Host, slug: &Slug) {
    let mut lives = Lives::default();
    let mut inherited = None;
    loop {
        tokio::time::sleep(lives.pause()).await;
        let since = Instant::now();
        // Connects to the running keeper, or starts a new keeper.
        match client::connect_or_replace(host, slug, inherited.as_ref()).await {
            Ok(keeper) => {
                if let Ok(mut stream) = keeper.open(&KeeperRequest::Watch).await {
                    while let Ok(event) = stream.receive().await {
                        match event {
                            KeeperEvent::Watched(secrets) => inherited = Some(newest(inherited, *secrets)),
                            // Any other event means that the bottle ends, or that another process watches this keeper.
                            _ => return,
                        }
                    }
                }
            }
            Err(error) if is_final(&error) => return,
            Err(error) => tracing::warn!("{}", causes::one_line(&error)),
        }
        lives.ended(since.elapsed());
    }
}

/// The number of keepers in a row that died soon after their start.
#[derive(Debug, Default)]
struct Lives(u32);

impl Lives {
    /// Returns the pause before the next keeper is started.
    fn pause(&self) -> Duration {
        match self.0.checked_sub(SHORT_LIVES) {
            Some(more) => CONNECTS_WITHIN.saturating_mul(2_u32.saturating_pow(more)).min(PAUSE_MAX),
            None => Duration::ZERO,
        }
    }

    /// Counts a keeper that died or could not be started. `lived` is the time for which it ran.
    fn ended(&mut self, lived: Duration) {
        self.0 = if lived < STABLE_AFTER { self.0.saturating_add(1) } else { 0 };
    }
}

/// Returns the secrets for the next keeper. If a command started the current keeper, this keeper does not know the
/// secrets, so the secrets of the keeper before it are used.
fn newest(known: Option<Inherited>, told: Inherited) -> Inherited {
    let Some(known) = known else { return told };
    if told == Inherited::default() {
        return known;
    }
    let mut replaced = known.replaced;
    replaced.append(told.replaced);
    let secrets = if told.secrets.is_empty() { known.secrets } else { told.secrets };
    Inherited { secrets, replaced, ..told }
}

/// Whether this connection error means that the bottle needs no watcher any more. After any other error, the next
/// attempt can succeed, for example when a command releases the lock, the bottle continues, or the container engine
/// starts again.
fn is_final(error: &ClientError) -> bool {
    match error {
        ClientError::NoSuchBottle { .. }
        | ClientError::NotRunning { .. }
        | ClientError::Orphaned { .. }
        | ClientError::NotAdopted { .. }
        | ClientError::Unusable { .. }
        | ClientError::Elsewhere { .. }
        | ClientError::Spawn(_)
        | ClientError::Unexpected => true,
        ClientError::Unreached { .. }
        | ClientError::Handshake(_)
        | ClientError::Lost(_)
        | ClientError::Locked(_)
        | ClientError::NotOpened(_) => false,
    }
}

/// Keeps a watcher running as soon as the bottle is detached. If `adopted` is set, a watcher may have started this
/// keeper and may be about to connect.
pub(super) async fn keep(host: Host, slug: Slug, adopted: bool, shared: Arc<Shared>) {
    let _ = shared.detached.subscribe().wait_for(|detached| *detached).await;
    let mut watched = shared.watched.subscribe();
    let mut pause = if adopted { CONNECTS_WITHIN } else { Duration::ZERO };
    loop {
        if tokio::time::timeout(pause, watched.wait_for(|watched| *watched)).await.is_ok() {
            let _ = watched.wait_for(|watched| !*watched).await;
            pause = CONNECTS_WITHIN;
            continue;
        }
        if let Err(error) = client::role(&host, ROLE, &slug).spawn() {
            tracing::warn!("cannot start the keeper's watcher: {error}");
        }
        pause = (pause * 2).clamp(CONNECTS_WITHIN, PAUSE_MAX);
    }
}

/// Serves a watcher until the bottle begins to end, and then tells the watcher so, because an ending bottle must not be
/// adopted. Refuses a second watcher.
pub(super) async fn serve(request: Request, shared: &Shared) {
    let stream = request.accept();
    if !shared.watched.send_if_modified(|watched| !std::mem::replace(watched, true)) {
        let answer = KeeperEvent::Refused("another process watches this keeper".to_owned());
        return send_last(&stream, &answer).await;
    }
    tracing::info!("a watcher is connected");
    let mut detached = shared.detached.subscribe();
    tokio::select! {
        () = send_secrets(&stream, shared) => {}
        _ = detached.wait_for(|detached| !*detached) => {}
        () = stream.closed() => {}
    }
    send_last(&stream, &KeeperEvent::Done).await;
    shared.watched.send_replace(false);
}

/// Sends the keeper's secrets to the watcher, and sends them again whenever they change. Returns when the watcher is
/// gone.
async fn send_secrets(stream: &Stream, shared: &Shared) {
    let mut inherited = shared.inherited.subscribe();
    loop {
        let secrets = inherited.borrow_and_update().clone();
        if stream.message(&KeeperEvent::Watched(Box::new(secrets))).await.is_err() {
            return;
        }
        if inherited.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use bottle_policy::secret::Secret;
    use bottle_protocol::session::guest::SecretText;

    use super::*;
    use crate::protocol::{LaunchFailure, LaunchFailureKind};

    #[test]
    fn keepers_that_die_at_once_are_replaced_ever_later() {
        let mut lives = Lives::default();
        let seconds = |lives: &Lives| lives.pause().as_secs();
        for wanted in [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(seconds(&lives), wanted, "{lives:?}");
            lives.ended(Duration::ZERO);
        }
        assert_eq!(seconds(&Lives(u32::MAX)), 60);
        lives.ended(STABLE_AFTER);
        assert_eq!(seconds(&lives), 0);
    }

    #[test]
    fn a_watcher_remembers_the_most_that_a_keeper_knew() {
        let none = Inherited::default;
        let with = |text: &str| Inherited {
            secrets: vec![SecretText(Secret::new(text.to_owned()))],
            ..Inherited::default()
        };
        for (known, told, wanted) in [
            (None, none(), none()),
            (None, with("a"), with("a")),
            (Some(with("a")), none(), with("a")),
            (Some(with("a")), with("b"), with("b")),
            (Some(none()), none(), none()),
        ] {
            assert_eq!(newest(known.clone(), told.clone()), wanted, "{known:?} {told:?}");
        }
    }

    #[test]
    fn a_watcher_remembers_replaced_values_of_all_keepers() {
        let of = |secrets: &[&str], replaced: &[(&str, &str)]| {
            let secrets = secrets.iter().map(|value| (*value).into()).collect();
            let mut inherited = Inherited { secrets, ..Inherited::default() };
            for (slot, value) in replaced {
                inherited.replaced.add(&[((*slot).to_owned(), (*value).into())].into());
            }
            inherited
        };
        let first = newest(None, of(&["launch"], &[]));
        let second = newest(Some(first), of(&["launch"], &[("a", "a2")]));
        // A command started this keeper, so it knows only what was replaced since.
        let third = newest(Some(second), of(&[], &[("a", "a3")]));
        assert_eq!(third, of(&["launch"], &[("a", "a2"), ("a", "a3")]));
    }

    #[test]
    fn a_watcher_stays_while_its_bottle_may_need_a_keeper() {
        let slug: Slug = "one".parse().expect("a slug");
        let error = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let failure = |is_busy| LaunchFailure {
            kind: LaunchFailureKind::Backend,
            message: String::new(),
            causes: Vec::new(),
            hint: None,
            left: Vec::new(),
            is_busy,
        };
        let why = String::new;
        for (error, wanted) in [
            (ClientError::NoSuchBottle { slug: slug.clone(), near: None }, true),
            (ClientError::NotRunning { slug: slug.clone(), why: why(), kept: false }, true),
            (ClientError::Orphaned { slug: slug.clone() }, true),
            (ClientError::NotAdopted { slug: slug.clone(), why: why() }, true),
            (ClientError::Unusable { slug: slug.clone(), why: why() }, true),
            (ClientError::Spawn(error()), true),
            (ClientError::Unexpected, true),
            (ClientError::Unreached { slug, path: "/s".into(), source: error() }, false),
            (ClientError::Locked(why()), false),
            (ClientError::NotOpened(Box::new(failure(true))), false),
            (ClientError::NotOpened(Box::new(failure(false))), false),
        ] {
            assert_eq!(is_final(&error), wanted, "{error}");
        }
    }
}
