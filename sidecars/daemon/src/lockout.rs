//! Counts the pieces of secrets that a bottle sends although the bottle's agent does not have these secrets. When the
//! number of pieces reaches a limit, the bottle is locked ([`bottle_policy::lock_out`]).
//!
//! ```text
//! egress   ─ new pieces ─┐                       ┌─ lock ─► every daemon
//!                        ├─► the bundle ─ limit? ┤
//! git gate ─ new pieces ─┘    one counter        └─ locked ─► the keeper
//! ```
//! The bundle counts the pieces of the whole bottle, because the bundle outlives the daemons' connections and the
//! keepers. Before a daemon answers the agent, the daemon waits until the bundle has counted the daemon's pieces
//! ([`Lockout::settled`]). Therefore the agent never learns more facts than the limit allows. A daemon also counts the
//! pieces that it finds itself. No request from the bottle resets a counter. A locked daemon denies all requests until
//! the bottle ends.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bottle_channel::Stream;
use bottle_policy::lock_out::{LockOut, Piece};
use bottle_protocol::session::bundle::{BundleEvent, Written};
use tokio::sync::watch;

/// The time limit for the bundle to count a piece. When the limit is reached, the daemon locks itself. Before the
/// bundle confirms a piece, it may have to lock every other daemon. Locking one daemon takes up to 8 s.
const COUNTED_WITHIN: Duration = Duration::from_secs(30);

/// The lock of one daemon or of the bundle, with a counter of pieces.
#[derive(Debug)]
pub struct Lockout {
    daemon: &'static str,
    /// The number of distinct pieces at which the lock is set. If `None`, pieces are not counted, and only
    /// [`Self::lock`] sets the lock.
    bound: Option<usize>,
    found: Mutex<Found>,
    /// The number of pieces in `found`.
    count: watch::Sender<usize>,
    /// The number of pieces in `found` that the bundle has counted. `None` if no bundle counts the pieces.
    counted: watch::Sender<Option<usize>>,
    /// Whether the lock is set. Reading this flag is cheaper than reading `why`.
    locked: AtomicBool,
    why: watch::Sender<Option<LockOut>>,
}

/// The pieces that were counted, and their destinations. Neither collection has more entries than the limit.
#[derive(Debug, Default)]
struct Found {
    /// Each piece, with the destination of the first text that contained the piece.
    pieces: Vec<(Piece, String)>,
    places: BTreeSet<String>,
}

impl Lockout {
    /// Creates a lock that is not set, with a limit of `bound` distinct pieces. If `bound` is `None`, pieces are not
    /// counted.
    #[must_use]
    pub fn new(daemon: &'static str, bound: Option<usize>) -> Self {
        Self {
            daemon,
            bound,
            found: Mutex::default(),
            count: watch::Sender::new(0),
            counted: watch::Sender::new(None),
            locked: AtomicBool::new(false),
            why: watch::Sender::new(None),
        }
    }

    /// Counts a piece that was found in a text to the destination `place`. The destination is a host or a repository.
    /// If a piece is sent several times or to several destinations, it is counted only once.
    pub fn hit(&self, piece: Piece, place: &str) {
        self.hit_from(self.daemon, piece, place);
    }

    /// Counts a piece like [`Self::hit`]. The piece was found by the daemon with the name `daemon`.
    pub fn hit_from(&self, daemon: &str, piece: Piece, place: &str) {
        let Some(bound) = self.bound else { return };
        let mut found = self.found();
        // Further pieces need not be counted after the limit is reached, because the bottle is locked.
        if found.pieces.len() >= bound || found.pieces.iter().any(|(known, _)| *known == piece) {
            return;
        }
        found.pieces.push((piece, place.to_owned()));
        found.places.insert(place.to_owned());
        if found.pieces.len() == bound {
            let places = found.places.iter().cloned().collect();
            self.lock(LockOut { daemon: daemon.to_owned(), hits: bound, places, parent: None });
        }
        self.count.send_replace(found.pieces.len());
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the lock with the reason `why`. If the lock is already set, the first reason is kept.
    pub fn lock(&self, why: LockOut) {
        self.locked.store(true, Ordering::SeqCst);
        self.why.send_if_modified(|first| {
            let unlocked = first.is_none();
            first.get_or_insert(why);
            unlocked
        });
    }

    /// Returns whether the lock is set. A locked daemon must deny all requests.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.locked.load(Ordering::SeqCst)
    }

    /// Waits until the bundle has counted every piece that was found so far. Returns whether the daemon is locked. A
    /// daemon calls this function before it sends an answer that could reveal whether a text contains a piece. If the
    /// bundle does not count the pieces within 30 s, the daemon locks itself.
    pub async fn settled(&self) -> bool {
        let wanted = *self.count.borrow();
        let mut counted = self.counted.subscribe();
        let all = counted.wait_for(|counted| counted.is_none_or(|counted| counted >= wanted));
        let settled = tokio::select! {
            counted = tokio::time::timeout(COUNTED_WITHIN, all) => matches!(counted, Ok(Ok(_))),
            _ = self.locked() => true,
        };
        if !settled {
            self.lock_without_bundle();
        }
        self.is_locked()
    }

    /// Reports every piece to the bundle, until the bundle disconnects. After this call, [`Self::settled`] waits for
    /// the bundle.
    pub fn report(self: Arc<Self>, bundle: Stream) -> impl Future<Output = ()> + Send + 'static {
        self.counted.send_replace(Some(0));
        async move {
            if self.send_pieces(bundle).await.is_none() {
                // Without the bundle, no process counts the pieces of all daemons together, so the daemon locks itself.
                self.lock_without_bundle();
            }
        }
    }

    async fn send_pieces(&self, mut bundle: Stream) -> Option<()> {
        let mut count = self.count.subscribe();
        for sent in 0.. {
            count.wait_for(|count| *count > sent).await.ok()?;
            let (piece, place) = self.found().pieces.get(sent).cloned()?;
            bundle.message(&BundleEvent::Hit { piece, place }).await.ok()?;
            let Written {} = bundle.receive().await.ok()?;
            self.counted.send_replace(Some(sent + 1));
        }
        Some(())
    }

    fn lock_without_bundle(&self) {
        let found = self.found();
        let (hits, places) = (found.pieces.len(), found.places.iter().cloned().collect());
        self.lock(LockOut { daemon: self.daemon.to_owned(), hits, places, parent: None });
    }

    /// Waits until the lock is set. Returns the reason for the lock.
    pub async fn locked(&self) -> LockOut {
        let mut why = self.why.subscribe();
        loop {
            if let Some(why) = why.borrow_and_update().clone() {
                return why;
            }
            if why.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use bottle_channel::{Channel, Side};
    use bottle_protocol::session::bundle::BundleRequest;
    use bottle_protocol::session::{Hello, Role};
    use proptest::prelude::*;
    use tokio::net::UnixStream;

    use super::*;

    fn why(lockout: &Lockout) -> Option<LockOut> {
        lockout.why.borrow().clone()
    }

    fn piece(text: &str) -> Piece {
        Piece::of(text.as_bytes())
    }

    #[tokio::test]
    async fn counts_distinct_pieces_once_each() {
        let lockout = Lockout::new("egress", Some(3));
        for place in ["a.example", "b.example", "a.example"].repeat(50) {
            lockout.hit(piece("the same text"), place);
        }
        lockout.hit_from("git-gate", piece("another text"), "c.example");
        assert!(!lockout.settled().await && why(&lockout).is_none());
        let waiting = lockout.locked();
        lockout.hit(piece("a third text"), "b.example");
        assert!(lockout.is_locked());
        let places = ["a.example", "b.example", "c.example"].map(str::to_owned).into();
        let first = LockOut { daemon: "egress".to_owned(), hits: 3, places, parent: None };
        assert_eq!(waiting.await, first);
        // Later pieces and later calls of `lock` do not change the reason.
        lockout.hit(piece("a fourth text"), "d.example");
        lockout.lock(LockOut { daemon: "git-gate".to_owned(), hits: 9, places: Vec::new(), parent: None });
        assert_eq!(lockout.locked().await, first);
    }

    #[test]
    fn without_a_limit_only_an_explicit_lock_locks() {
        let lockout = Lockout::new("egress", None);
        (0..10_000_usize).for_each(|number| lockout.hit(Piece::of(&number.to_le_bytes()), "a.example"));
        assert!(!lockout.is_locked());
        lockout.lock(LockOut { daemon: "git-gate".to_owned(), hits: 5, places: Vec::new(), parent: None });
        assert!(lockout.is_locked());
    }

    /// Connects a daemon to its bundle. Returns the bundle's stream, and the channels of both processes.
    async fn connected(lockout: &Arc<Lockout>) -> (Stream, Vec<Channel>) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let (bundle, daemon) = tokio::join!(
            Channel::establish(ours, Side::Dialed, Hello::of(Role::Bundle)),
            Channel::establish(theirs, Side::Accepted, Hello::of(Role::Egress))
        );
        let ((bundle, _, _), (daemon, mut incoming, _)) = (bundle.expect("bundle"), daemon.expect("daemon"));
        let pieces = bundle.open(&BundleRequest::Hits).await.expect("open");
        let request = incoming.next().await.expect("request");
        tokio::spawn(Arc::clone(lockout).report(request.accept()));
        (pieces, vec![bundle, daemon])
    }

    #[tokio::test]
    async fn a_daemon_answers_only_when_the_bundle_has_counted() {
        let lockout = Arc::new(Lockout::new("egress", Some(5)));
        let (mut bundle, channels) = connected(&lockout).await;
        assert!(!lockout.settled().await, "nothing to count");
        lockout.hit(piece("one text"), "a.example");
        lockout.hit(piece("one text"), "a.example");
        let early = tokio::time::timeout(Duration::from_millis(50), lockout.settled()).await;
        assert!(early.is_err(), "answers before the bundle has counted");
        let hit: BundleEvent = bundle.receive().await.expect("hit");
        assert_eq!(hit, BundleEvent::Hit { piece: piece("one text"), place: "a.example".to_owned() });
        // When a piece reaches the limit, the bundle locks the daemon before the bundle confirms the piece.
        lockout.lock(LockOut { daemon: "git-gate".to_owned(), hits: 5, places: Vec::new(), parent: None });
        bundle.message(&Written {}).await.expect("counted");
        assert!(lockout.settled().await);
        drop(channels);
    }

    #[tokio::test]
    async fn a_daemon_locks_itself_if_its_bundle_does_not_count() {
        let lockout = Arc::new(Lockout::new("egress", Some(5)));
        let (bundle, channels) = connected(&lockout).await;
        drop((bundle, channels));
        lockout.hit(piece("one text"), "a.example");
        assert!(lockout.settled().await);
    }

    proptest! {
        #[test]
        fn locks_at_the_limit_of_distinct_pieces_with_bounded_memory(
            bound in 1_usize..8,
            hits in prop::collection::vec(0_u8..18, 0..60),
        ) {
            let lockout = Lockout::new("egress", Some(bound));
            let mut different = HashSet::new();
            for text in hits {
                lockout.hit(Piece::of(&[text]), "a.example");
                different.insert(text);
                prop_assert_eq!(lockout.is_locked(), different.len() >= bound);
            }
            let found = lockout.found.lock().expect("no panic");
            prop_assert!(found.pieces.len() <= bound && found.places.len() <= bound);
        }
    }
}
