//! Runs the isolation probe. The guest tries to reach targets outside the bottle. As a control, the host then tries the
//! same targets.
//!
//! ```text
//!  listen on every address of this machine ──► the guest tries these and others ──► the machine tries them
//!                    │ any other contact came from the bottle                               │ the control
//! ```
//! An attempt is blocked if the bottle's kernel reports that the target is unreachable. An attempt that timed out is
//! blocked only if the control reached the same address. If an attempt timed out and no control reached the address,
//! the result is unknown and the probe fails.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bottle_host::addresses;
use bottle_protocol::session::guest::{Attempt, Probe, Reach};
use futures_util::future::join_all;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

/// The maximum number of addresses to listen on. A machine with more addresses has them for bottles and containers. A
/// single address is sufficient to show whether the bottle reaches this machine.
const MAX_ADDRESSES: usize = 64;

/// The maximum number of attempts to find a port that is free for both TCP and UDP. After the last attempt, the address
/// is skipped.
const MAX_BIND_ATTEMPTS: usize = 16;

/// How long the control connection from this machine may take. After this time, the control has no answer.
const ANSWERS_WITHIN: Duration = Duration::from_millis(1000);

/// The maximum number of contacts that are recorded for each listener. Further contacts are ignored.
const MAX_VISITS: usize = 256;

/// An attempt of the guest and the result of its control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgedAttempt {
    /// The guest's attempt, with the result after the comparison with the control.
    pub attempt: Attempt,
    /// The result of the control.
    pub control: Control,
}

/// The result of the control, which tries the target from this machine, outside the bottle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// The target answered.
    Answered,
    /// The guest's result is conclusive without a control.
    NotNeeded,
    /// The guest's result is not conclusive, and no control reached the target.
    Missing,
}

/// Whether there is at least one attempt and all attempts were blocked.
#[must_use]
pub fn all_blocked(attempts: &[Attempt]) -> bool {
    !attempts.is_empty() && attempts.iter().all(|attempt| attempt.result == Reach::Blocked)
}

/// The control listeners on this machine's addresses. Dropping this value closes the listeners.
pub struct Controls(Vec<Listener>);

impl Controls {
    /// Listens on every address at which another machine or a bottle could reach this machine.
    ///
    /// # Errors
    /// When the machine's addresses cannot be listed. An address that cannot be bound is skipped.
    pub async fn listen() -> io::Result<Self> {
        let mut ports = BTreeSet::new();
        let mut listeners = Vec::new();
        for address in addresses::reachable()?.into_iter().take(MAX_ADDRESSES) {
            match Listener::on(address, &mut ports).await {
                Ok(listener) => listeners.push(listener),
                // The address may have been removed since it was listed.
                Err(error) => tracing::debug!("cannot listen on {address}: {error}"),
            }
        }
        Ok(Self(listeners))
    }

    /// Creates the probe request for the guest.
    #[must_use]
    pub fn request(&self, others: Vec<SocketAddr>, isolation_only: bool) -> Probe {
        let host = self.0.iter().map(|listener| without_scope(listener.address)).collect();
        Probe { host, others, isolation_only }
    }

    /// Tries the addresses of the listeners from this machine, and then decides the final results of the guest's
    /// attempts.
    pub async fn judge(&self, attempts: Vec<Attempt>) -> Vec<JudgedAttempt> {
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
                judge(attempt, found)
            })
            .collect()
    }
}

/// The contacts that a control listener observed.
#[derive(Debug, Clone, Copy)]
struct ListenerResult {
    /// Whether the control connection reached the listener.
    answered: bool,
    /// Whether a contact that is not from the control, and therefore from the bottle, reached the listener.
    contacted: bool,
}

fn judge(attempt: Attempt, found: Option<ListenerResult>) -> JudgedAttempt {
    let answered = found.is_some_and(|found| found.answered);
    if found.is_some_and(|found| found.contacted) {
        let seen = "it was received outside".to_owned();
        return JudgedAttempt {
            attempt: Attempt { result: Reach::Reached, seen, ..attempt },
            control: Control::Answered,
        };
    }
    match attempt.result {
        Reach::Unknown if answered => {
            let seen = format!("{}, while it answered outside", attempt.seen);
            JudgedAttempt {
                attempt: Attempt { result: Reach::Blocked, seen, ..attempt },
                control: Control::Answered,
            }
        }
        Reach::Unknown => JudgedAttempt { attempt, control: Control::Missing },
        Reach::Reached | Reach::Blocked => {
            let control = if answered { Control::Answered } else { Control::NotNeeded };
            JudgedAttempt { attempt, control }
        }
    }
}

/// A random number that identifies the contacts of the control. The source address cannot identify them, because a
/// firewall may translate a bottle's address.
type Nonce = [u8; 16];

/// A control listener on one address of this machine, with the same port for TCP and UDP.
struct Listener {
    address: SocketAddr,
    visits: Arc<Visits>,
    tasks: [JoinHandle<()>; 2],
}

/// The contacts of a listener. Each entry is the nonce that the contact sent, or `None` until the nonce is complete.
#[derive(Default)]
struct Visits {
    recorded: Mutex<Vec<Option<Nonce>>>,
    changed: Notify,
}

impl Visits {
    fn recorded(&self) -> MutexGuard<'_, Vec<Option<Nonce>>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a contact and returns its index. Returns `None` after [`MAX_VISITS`] contacts.
    fn admit(&self) -> Option<usize> {
        let mut recorded = self.recorded();
        let number = recorded.len();
        (number < MAX_VISITS).then(|| {
            recorded.push(None);
            number
        })
    }

    fn record(&self, number: usize, received: &[u8]) {
        if let (Some(contact), Ok(nonce)) = (self.recorded().get_mut(number), received.try_into()) {
            *contact = Some(nonce);
        }
        self.changed.notify_waiters();
    }

    /// Waits until `count` contacts have sent `nonce`.
    async fn wait_for(&self, nonce: Nonce, count: usize) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // The waiter is registered before the check, so that it misses no notifications.
            changed.as_mut().enable();
            if self.recorded().iter().filter(|record| **record == Some(nonce)).count() >= count {
                return;
            }
            changed.await;
        }
    }
}

impl Listener {
    async fn on(address: SocketAddr, ports: &mut BTreeSet<u16>) -> io::Result<Self> {
        for _ in 0..MAX_BIND_ATTEMPTS {
            let tcp = TcpListener::bind(address).await?;
            let address = tcp.local_addr()?;
            let Ok(udp) = UdpSocket::bind(address).await else { continue };
            // The port of an attempt's target identifies the listener, so each listener needs a different port.
            if !ports.insert(address.port()) {
                continue;
            }
            let visits = Arc::new(Visits::default());
            let tcp = tokio::spawn(accept(tcp, visits.clone()));
            let udp = tokio::spawn(receive(udp, visits.clone()));
            return Ok(Self { address, visits, tasks: [tcp, udp] });
        }
        Err(io::Error::other("no port is free"))
    }

    /// Connects to the listener from this machine. Returns whether the listener answered, and whether the bottle
    /// contacted it.
    async fn control(&self) -> ListenerResult {
        let nonce: Nonce = rand::random();
        let answered =
            tokio::time::timeout(ANSWERS_WITHIN, self.contact(nonce)).await.is_ok_and(|done| done.is_ok());
        // If the control got no answer, one of the recorded contacts may be the control itself.
        let contacted = answered && self.visits.recorded().iter().any(|record| *record != Some(nonce));
        ListenerResult { answered, contacted }
    }

    async fn contact(&self, nonce: Nonce) -> io::Result<()> {
        TcpStream::connect(self.address).await?.write_all(&nonce).await?;
        let mut any = self.address;
        any.set_port(0);
        UdpSocket::bind(any).await?.send_to(&nonce, self.address).await?;
        self.visits.wait_for(nonce, 2).await;
        Ok(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Accepts contacts concurrently until the listener is dropped.
async fn accept(listener: TcpListener, visits: Arc<Visits>) {
    let mut tasks = JoinSet::new();
    // A failed `accept` ends this task. The control then receives no answer.
    while let Ok((mut contact, _)) = listener.accept().await {
        let Some(number) = visits.admit() else { continue };
        let visits = visits.clone();
        tasks.spawn(async move {
            let mut nonce = Nonce::default();
            if contact.read_exact(&mut nonce).await.is_ok() {
                visits.record(number, &nonce);
            }
        });
    }
}

async fn receive(socket: UdpSocket, visits: Arc<Visits>) {
    let mut buffer = [0; 64];
    while let Ok((length, _)) = socket.recv_from(&mut buffer).await {
        if let Some(number) = visits.admit() {
            visits.record(number, &buffer[..length]);
        }
    }
}

/// Removes the scope id from the address, because the scope id is an interface number, which differs inside the bottle.
fn without_scope(mut address: SocketAddr) -> SocketAddr {
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
    fn a_timeout_counts_as_blocked_only_with_a_control_and_a_contact_always_counts_as_reached() {
        let found = |answered, contacted| Some(ListenerResult { answered, contacted });
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
            let tried = judge(attempt(seen, None), found);
            assert_eq!((tried.attempt.result, tried.control), (result, control), "{seen:?} {found:?}");
        }
        assert!(!all_blocked(&[]), "nothing was tried");
    }

    #[tokio::test]
    async fn a_listener_distinguishes_the_control_from_other_contacts() {
        let mut ports = BTreeSet::new();
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let controls = Controls(vec![
            Listener::on(here, &mut ports).await.expect("listener"),
            Listener::on(here, &mut ports).await.expect("listener"),
            Listener::on(here, &mut ports).await.expect("listener"),
        ]);
        let addresses = controls.request(Vec::new(), true).host;
        let contact = TcpStream::connect(addresses[1]).await.expect("a visit");
        let socket = UdpSocket::bind(here).await.expect("socket");
        socket.send_to(b"sixteen bytes ok", addresses[2]).await.expect("sent");
        controls.0[2].visits.wait_for(*b"sixteen bytes ok", 1).await;
        let attempts = addresses.iter().map(|&address| attempt(Reach::Unknown, Some(address))).collect();
        let tried = controls.judge(attempts).await;
        let results: Vec<_> = tried.iter().map(|tried| tried.attempt.result).collect();
        assert_eq!(results, [Reach::Blocked, Reach::Reached, Reach::Reached]);
        drop(contact);
    }
}
