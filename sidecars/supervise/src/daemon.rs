//! Runs the supervise daemon. The daemon confines its process, receives routes from its parent process, and serves the
//! bottle.

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, bail};
use bottle_channel::Stream;
use bottle_daemon::{Confinement, Listener, ListenerConfig, Lockout, Serve};
use bottle_harden::daemon_syscalls;
use bottle_harden::identity::Identity;
use bottle_policy::names::{SUPERVISE_PORT, SUPERVISE_PORTS};
use bottle_protocol::session::Role;
use bottle_protocol::session::bundle::{BundleEvent, BundleRequest, SuperviseProvision};
use bottle_queue::Questions;
use serde::{Deserialize, Serialize};

use crate::http;
use crate::keeper_tools::KeeperTools;
use crate::mcp_server::Server;
use crate::proposals::Proposals;

/// The daemon's name in health reports and events.
pub const NAME: &str = "supervise";

/// The maximum number of open file descriptors. The daemon needs one for each connection, and up to 64 for other
/// purposes.
const DESCRIPTORS: u64 = http::CONNECTIONS as u64 + 64;

/// The daemon's configuration. The bundle passes it on the daemon's command line. The configuration contains no
/// secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuperviseConfig {
    /// The listener that the bottle connects to.
    pub proxy: ListenerConfig,
    /// The user that the daemon switches to if it was started by root. The user needs write access to the listener's
    /// directory.
    #[serde(default)]
    pub identity: Option<Identity>,
}

/// Runs this process as the supervise daemon. The process has the command line `__supervise HOME SLUG CONFIG`. Returns
/// when the bundle stops the daemon or disconnects.
pub fn run() -> ExitCode {
    bottle_daemon::run("__supervise", start)
}

fn start(mut config: SuperviseConfig) -> anyhow::Result<()> {
    let _listener_directory =
        if config.identity.is_some() { config.proxy.hold().context("listener")? } else { None };
    let confined = Confinement {
        identity: config.identity,
        descriptors: Some(DESCRIPTORS),
        files: config.proxy.files(),
        calls: daemon_syscalls::restrict,
    }
    .apply()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let proxy = config.proxy.clone();
    runtime.block_on(bottle_daemon::serve(confined, &proxy, SuperviseDaemon::new(config)))
}

/// The state of the daemon. The daemon keeps this state between the requests of its parent process.
struct SuperviseDaemon {
    config: SuperviseConfig,
    questions: Questions,
    lockout: Arc<Lockout>,
    proposals: OnceLock<Arc<Proposals>>,
    /// The calls that wait for the keeper. Not set if the agent has no access to the keeper's tools.
    keeper_tools: OnceLock<Arc<KeeperTools>>,
}

impl Serve for SuperviseDaemon {
    const NAME: &'static str = NAME;
    const ROLE: Role = Role::Supervise;
    const PORTS: &'static [u16] = &SUPERVISE_PORTS;

    async fn answer(&self, asked: BundleRequest) -> anyhow::Result<BundleEvent> {
        match (asked, self.proposals.get()) {
            (BundleRequest::Supervise(_), Some(_)) => bail!("supervise is provisioned already"),
            (BundleRequest::Supervise(provision), None) => self.open(provision).await,
            (BundleRequest::Routes(routes), Some(proposals)) => {
                let revision = routes.revision;
                proposals.replace(routes);
                Ok(BundleEvent::Live { revision })
            }
            (BundleRequest::Routes(_), None) => bail!("supervise is not provisioned yet"),
            _ => bail!("this request is not for supervise"),
        }
    }

    fn questions(&self) -> &Questions {
        &self.questions
    }

    fn lockout(&self) -> &Arc<Lockout> {
        &self.lockout
    }

    fn tool_call(&self, keeper: Stream) -> impl Future<Output = ()> + Send + 'static {
        let tools = self.keeper_tools.get().cloned();
        async move {
            match tools {
                Some(tools) => tools.serve(keeper).await,
                None => keeper.reset("this bottle may start no others").await,
            }
        }
    }

    fn up(&self) -> bool {
        self.proposals.get().is_some()
    }
}

impl SuperviseDaemon {
    fn new(config: SuperviseConfig) -> Self {
        let lockout = Arc::new(Lockout::new(NAME, None));
        Self {
            config,
            questions: Questions::default(),
            lockout,
            proposals: OnceLock::new(),
            keeper_tools: OnceLock::new(),
        }
    }

    async fn open(&self, provision: SuperviseProvision) -> anyhow::Result<BundleEvent> {
        let proposals =
            Arc::new(Proposals::new(self.questions.clone(), Arc::clone(&self.lockout), provision.routes));
        let call_timeout = Duration::from_secs(provision.call_seconds);
        let keeper_tools = provision.keeper_tools.then(|| Arc::new(KeeperTools::new()));
        let listener = Listener::bind(&self.config.proxy, SUPERVISE_PORT).await.context("supervise")?;
        let server = Server::new(Arc::clone(&proposals), call_timeout, keeper_tools.clone());
        tokio::spawn(http::accept(server, listener));
        // The daemon handles one request at a time, so `proposals` and `keeper_tools` are not set yet.
        let _ = self.proposals.set(proposals);
        if let Some(tools) = keeper_tools {
            let _ = self.keeper_tools.set(tools);
        }
        Ok(BundleEvent::SuperviseOpen)
    }
}
