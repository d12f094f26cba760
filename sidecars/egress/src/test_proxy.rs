//! A proxy with listeners in a temporary directory, for the tests of this crate and the fuzzers.

use std::path::Path;
use std::sync::Arc;

use bottle_channel::{Channel, Side, Stream};
use bottle_daemon::ListenerConfig;
use bottle_protocol::session::bundle::{BundleRequest, Provision};
use bottle_protocol::session::lease::{LeaseAnswer, LeaseRequest};
use bottle_protocol::session::{Hello, Role};
use bottle_queue::Questions;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::daemon::EgressConfig;
use crate::egress::{Egress, ProvisionError, Shared};
use crate::lease::Leases;
use crate::listener::serve;
use crate::report::backlog::Backlog;

/// A provisioned proxy, with the queues that tests read.
#[cfg_attr(not(test), expect(dead_code, reason = "fuzzers read no events"))]
pub(crate) struct TestProxy {
    pub(crate) egress: Arc<Egress>,
    pub(crate) backlog: Arc<Backlog>,
    pub(crate) questions: Questions,
    /// The directory with the proxy's sockets and logs.
    pub(crate) directory: TempDir,
    /// The task of the test's keeper. It answers each lease request with [`LeaseAnswer::Unlimited`].
    pub(crate) keeper: JoinHandle<()>,
}

impl TestProxy {
    /// Provisions a proxy and opens its listeners.
    pub(crate) async fn with(provision: Provision) -> Self {
        Self::with_lockout(provision, None).await
    }

    /// Like [`Self::with`], but the proxy locks the bottle after `lock_after` hits.
    pub(crate) async fn with_lockout(provision: Provision, lock_after: Option<usize>) -> Self {
        let test_proxy = Self::without_listeners(provision, lock_after);
        test_proxy.open().await;
        test_proxy
    }

    /// Like [`Self::with`], but the proxy resolves names through `server`.
    #[cfg(test)]
    pub(crate) async fn with_name_server(provision: Provision, server: std::net::SocketAddr) -> Self {
        let mut test_proxy = Self::without_listeners(provision, None);
        let egress = Arc::get_mut(&mut test_proxy.egress).expect("it is not shared yet");
        let upstream = Arc::get_mut(&mut egress.upstream).expect("it is not shared yet");
        upstream.set_resolver(crate::upstream::dns_lookup::HostResolver::with_server(server));
        test_proxy.open().await;
        test_proxy
    }

    fn without_listeners(provision: Provision, lock_after: Option<usize>) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let shared = Shared::new(directory.path(), lock_after);
        let egress = provision_egress(provision, directory.path(), shared.clone()).expect("provision");
        let keeper = tokio::spawn(without_budgets(Arc::clone(&shared.leases)));
        Self { egress, backlog: shared.backlog, questions: shared.questions, directory, keeper }
    }

    async fn open(&self) {
        serve::open(&self.egress, &listener_in(self.directory.path())).await.expect("open");
    }
}

/// Opens a stream as a keeper does. `serve` is the proxy's side of the stream. The channel must stay open as long as
/// the stream is used.
pub(crate) async fn keeper_stream<F>(
    request: &BundleRequest,
    serve: impl Fn(Stream) -> F + Send + 'static,
) -> (Channel, Stream)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    tokio::spawn(async move {
        let role = Hello::of(Role::Egress);
        let (_channel, mut incoming, _) =
            Channel::establish(theirs, Side::Accepted, role).await.expect("hello");
        while let Some(request) = incoming.next().await {
            tokio::spawn(serve(request.accept()));
        }
    });
    let (channel, _incoming, _) =
        Channel::establish(ours, Side::Dialed, Hello::of(Role::Bundle)).await.expect("hello");
    let stream = channel.open(request).await.expect("stream");
    (channel, stream)
}

/// Opens a stream for lease requests as a keeper does.
pub(crate) async fn connect_to_leases(leases: Arc<Leases>) -> (Channel, Stream) {
    keeper_stream(&BundleRequest::Leases, move |stream| Arc::clone(&leases).serve(stream)).await
}

/// Acts as the keeper of a bottle without a budget: answers each lease request with [`LeaseAnswer::Unlimited`].
async fn without_budgets(leases: Arc<Leases>) {
    let (_channel, mut stream) = connect_to_leases(leases).await;
    while let Ok(request) = stream.receive::<LeaseRequest>().await {
        if stream.message(&LeaseAnswer::Unlimited { key: request.key }).await.is_err() {
            return;
        }
    }
}

/// Provisions a proxy without opening its listeners.
pub(crate) fn provision_egress(
    provision: Provision,
    directory: &Path,
    shared: Shared,
) -> Result<Arc<Egress>, ProvisionError> {
    let config = EgressConfig {
        proxy: listener_in(directory),
        logs: directory.to_owned(),
        relay_log: false,
        identity: None,
        machine: None,
        lock_after: None,
    };
    Egress::provision(provision, &config, shared)
}

fn listener_in(directory: &Path) -> ListenerConfig {
    ListenerConfig::Socket { directory: directory.to_owned() }
}

/// Returns a [`Provision`] with the routes in `yaml` and nothing else.
pub(crate) fn provision(yaml: &str) -> Provision {
    Provision::of_routes("test".parse().expect("slug"), yaml.parse().expect("routes"))
}
