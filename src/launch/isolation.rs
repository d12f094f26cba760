//! Isolation is measured, not assumed: what a bottle tries to reach from inside, and that outside it would have
//! been reached at that moment.
//!
//! ```text
//!  listen on every address of this machine ──► the guest tries them, and all else ──► the machine tries them
//!                    │ whoever comes who is not the machine itself came from the bottle         │ the control
//! ```
//! An attempt is closed by the word of the bottle's own kernel that no way leads there. Where it only had no
//! answer, that counts when the same address answered outside, and else it is unknown, which is not closed.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bottle_contract::session::guest::{Attempt, Probe, Reach};
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use crate::host::addresses;

/// Addresses that are listened on at most. A machine with more has them for bottles and containers, and each of
/// them is the same machine.
const MOST: usize = 64;

/// Ports tried until one is free for TCP and UDP alike.
const TRIES: usize = 16;

/// How long this machine may take to answer itself.
const ANSWERS_WITHIN: Duration = Duration::from_millis(1000);

/// How many visitors of one address are remembered.
const VISITORS: usize = 256;

/// An attempt, and what its control says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// The attempt, judged.
    pub attempt: Attempt,
    /// Its control.
    pub control: Control,
}

/// What is known of the target from outside the bottle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// It answered outside.
    Answered,
    /// What was seen can mean nothing else.
    NotNeeded,
    /// Nothing, and it would have been needed.
    Missing,
}

/// Whether every attempt found its target closed. Nothing tried is nothing shown.
#[must_use]
pub fn holds(attempts: &[Attempt]) -> bool {
    !attempts.is_empty() && attempts.iter().all(|attempt| attempt.result == Reach::Blocked)
}

/// Listeners on this machine's own addresses, until dropped.
pub struct Controls(Vec<Listener>);

impl Controls {
    /// Listens on every address by which another machine or a bottle could reach this one.
    ///
    /// # Errors
    /// When the machine's addresses cannot be listed. One that cannot be listened on is left out.
    pub async fn stand() -> io::Result<Self> {
        let mut ports = BTreeSet::new();
        let mut listeners = Vec::new();
        for address in addresses::reachable()?.into_iter().take(MOST) {
            match Listener::on(address, &mut ports).await {
                Ok(listener) => listeners.push(listener),
                // Such as one that went away since.
                Err(error) => tracing::debug!("nothing listens on {address}: {error}"),
            }
        }
        Ok(Self(listeners))
    }

    /// What the guest is asked to try.
    #[must_use]
    pub fn request(&self, others: Vec<SocketAddr>, isolation_only: bool) -> Probe {
        let host = self.0.iter().map(|listener| without_link(listener.address)).collect();
        Probe { host, others, isolation_only }
    }

    /// What the guest's attempts mean. Tries the same addresses from here.
    pub async fn judge(&self, attempts: Vec<Attempt>) -> Vec<Tried> {
        let controls = join_all(self.0.iter().map(Listener::control)).await;
        let of = |attempt: &Attempt| {
            let port = attempt.to?.port();
            let at = self.0.iter().position(|listener| listener.address.port() == port)?;
            controls.get(at).copied()
        };
        attempts
            .into_iter()
            .map(|attempt| {
                let found = of(&attempt);
                judged(attempt, found)
            })
            .collect()
    }
}

/// What a listener knows at the end.
#[derive(Debug, Clone, Copy)]
struct Found {
    answered: bool,
    visited: bool,
}

fn judged(attempt: Attempt, found: Option<Found>) -> Tried {
    let answered = found.is_some_and(|found| found.answered);
    if found.is_some_and(|found| found.visited) {
        let seen = "it was heard outside".to_owned();
        return Tried {
            attempt: Attempt { result: Reach::Reached, seen, ..attempt },
            control: Control::Answered,
        };
    }
    match attempt.result {
        Reach::Unknown if answered => {
            let seen = format!("{}, while it answered outside", attempt.seen);
            Tried { attempt: Attempt { result: Reach::Blocked, seen, ..attempt }, control: Control::Answered }
        }
        Reach::Unknown => Tried { attempt, control: Control::Missing },
        Reach::Reached | Reach::Blocked => {
            let control = if answered { Control::Answered } else { Control::NotNeeded };
            Tried { attempt, control }
        }
    }
}

/// What this machine says when it comes itself: an address would not tell it from a bottle, whose packets a firewall
/// may give another one.
type Word = [u8; 16];

/// One address of this machine, over TCP and UDP on one port.
struct Listener {
    address: SocketAddr,
    visitors: Arc<Visitors>,
    hearing: [JoinHandle<()>; 2],
}

/// Everybody who came, each with what they said; nothing yet, or nothing that long, is nothing.
#[derive(Default)]
struct Visitors {
    came: Mutex<Vec<Option<Word>>>,
    news: Notify,
}

impl Visitors {
    fn came(&self) -> MutexGuard<'_, Vec<Option<Word>>> {
        self.came.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that somebody is here; their number, unless there were too many.
    fn enter(&self) -> Option<usize> {
        let mut came = self.came();
        let number = came.len();
        (number < VISITORS).then(|| {
            came.push(None);
            number
        })
    }

    fn said(&self, number: usize, words: &[u8]) {
        if let (Some(visitor), Ok(word)) = (self.came().get_mut(number), words.try_into()) {
            *visitor = Some(word);
        }
        self.news.notify_waiters();
    }

    /// Waits until so many said this word.
    async fn wait_for(&self, word: Word, count: usize) {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            // From here on nobody's coming is missed.
            news.as_mut().enable();
            if self.came().iter().filter(|said| **said == Some(word)).count() >= count {
                return;
            }
            news.await;
        }
    }
}

impl Listener {
    async fn on(address: SocketAddr, ports: &mut BTreeSet<u16>) -> io::Result<Self> {
        for _ in 0..TRIES {
            let tcp = TcpListener::bind(address).await?;
            let address = tcp.local_addr()?;
            let Ok(udp) = UdpSocket::bind(address).await else { continue };
            // By its port an attempt is told from others.
            if !ports.insert(address.port()) {
                continue;
            }
            let visitors = Arc::new(Visitors::default());
            let tcp = tokio::spawn(accept(tcp, visitors.clone()));
            let udp = tokio::spawn(receive(udp, visitors.clone()));
            return Ok(Self { address, visitors, hearing: [tcp, udp] });
        }
        Err(io::Error::other("no port is free"))
    }

    /// Whether it answers this machine, and whether anybody else came.
    async fn control(&self) -> Found {
        let word: Word = rand::random();
        let answered =
            tokio::time::timeout(ANSWERS_WITHIN, self.visit(word)).await.is_ok_and(|done| done.is_ok());
        // Without an answer one of these may be our own.
        let visited = answered && self.visitors.came().iter().any(|said| *said != Some(word));
        Found { answered, visited }
    }

    async fn visit(&self, word: Word) -> io::Result<()> {
        TcpStream::connect(self.address).await?.write_all(&word).await?;
        let mut any = self.address;
        any.set_port(0);
        UdpSocket::bind(any).await?.send_to(&word, self.address).await?;
        self.visitors.wait_for(word, 2).await;
        Ok(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.hearing.iter().for_each(JoinHandle::abort);
    }
}

/// Hears each visitor beside the others, until the listener is dropped.
async fn accept(listener: TcpListener, visitors: Arc<Visitors>) {
    let mut hearing = JoinSet::new();
    // A failure ends it, and then the control has no answer.
    while let Ok((mut visitor, _)) = listener.accept().await {
        let Some(number) = visitors.enter() else { continue };
        let visitors = visitors.clone();
        hearing.spawn(async move {
            let mut word = Word::default();
            if visitor.read_exact(&mut word).await.is_ok() {
                visitors.said(number, &word);
            }
        });
    }
}

async fn receive(socket: UdpSocket, visitors: Arc<Visitors>) {
    let mut room = [0; 64];
    while let Ok((length, _)) = socket.recv_from(&mut room).await {
        if let Some(number) = visitors.enter() {
            visitors.said(number, &room[..length]);
        }
    }
}

/// An address without its interface, which has another number inside.
fn without_link(mut address: SocketAddr) -> SocketAddr {
    if let SocketAddr::V6(v6) = &mut address {
        v6.set_scope_id(0);
    }
    address
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn attempt(result: Reach, to: Option<SocketAddr>) -> Attempt {
        Attempt { target: "this".into(), via: "tcp".into(), to, result, seen: "nothing".into() }
    }

    #[test]
    fn no_answer_counts_only_beside_one_outside_and_a_visit_is_a_hole_whatever_was_seen() {
        let found = |answered, visited| Some(Found { answered, visited });
        for (seen, found, result, control) in [
            (Reach::Blocked, None, Reach::Blocked, Control::NotNeeded),
            (Reach::Blocked, found(false, false), Reach::Blocked, Control::NotNeeded),
            (Reach::Blocked, found(true, false), Reach::Blocked, Control::Answered),
            (Reach::Blocked, found(true, true), Reach::Reached, Control::Answered),
            (Reach::Unknown, None, Reach::Unknown, Control::Missing),
            (Reach::Unknown, found(false, false), Reach::Unknown, Control::Missing),
            (Reach::Unknown, found(true, false), Reach::Blocked, Control::Answered),
            (Reach::Reached, found(true, false), Reach::Reached, Control::Answered),
            (Reach::Reached, None, Reach::Reached, Control::NotNeeded),
        ] {
            let tried = judged(attempt(seen, None), found);
            assert_eq!((tried.attempt.result, tried.control), (result, control), "{seen:?} {found:?}");
        }
        assert!(!holds(&[]), "nothing was tried");
    }

    #[tokio::test]
    async fn a_listener_tells_this_machines_own_visit_from_another() {
        let mut ports = BTreeSet::new();
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let controls = Controls(vec![
            Listener::on(here, &mut ports).await.expect("listener"),
            Listener::on(here, &mut ports).await.expect("listener"),
            Listener::on(here, &mut ports).await.expect("listener"),
        ]);
        let addresses = controls.request(Vec::new(), true).host;
        let visit = TcpStream::connect(addresses[1]).await.expect("a visit");
        let socket = UdpSocket::bind(here).await.expect("socket");
        socket.send_to(b"sixteen bytes ok", addresses[2]).await.expect("sent");
        controls.0[2].visitors.wait_for(*b"sixteen bytes ok", 1).await;
        let attempts = addresses.iter().map(|&address| attempt(Reach::Unknown, Some(address))).collect();
        let tried = controls.judge(attempts).await;
        let results: Vec<_> = tried.iter().map(|tried| tried.attempt.result).collect();
        assert_eq!(results, [Reach::Blocked, Reach::Reached, Reach::Reached]);
        drop(visit);
    }
}
