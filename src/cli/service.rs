//! `bottle service`: manages programs that run beside the agent. These programs are checked for readiness, and started
//! again when they end.

use std::time::Duration;

use bottle_host::Host;
use bottle_lib::report::BottleService;
use bottle_lib::services::Services;
use bottle_manifest::services::{BadCheck, ReadinessCheck};
use bottle_policy::names::Slug;
use bottle_protocol::session::process::ProcessName;
use bottle_protocol::session::service::{Restart, Service as GuestService, ServiceState, StopService};

use super::candidates;
use super::process_output::Log;
use super::program_args::ProgramArgs;
use super::time_limit::time_limit;
use crate::console::error::CliError;
use crate::console::exit;
use crate::console::output::{Output, one_line};
use crate::console::runtime::block_on;
use crate::console::signals::{Signals, interrupted};

/// The commands of `bottle service`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Service {
    List(List),
    Start(Box<Start>),
    Stop(Stop),
    /// Show the output of the last run of a service, or a part of it
    ///
    /// Each run is a process with the service's name: `bottle ps` lists the last two.
    Logs(Log),
}

impl Service {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        match self {
            Self::List(list) => list.run(host, output),
            Self::Start(start) => start.run(host, output),
            Self::Stop(stop) => stop.run(host, output),
            Self::Logs(log) => log.run(host, output),
        }
    }
}

/// Show the services of a bottle
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::running())]
    slug: Slug,
}

impl List {
    fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let services = until_signal(async { Ok(Services::new(host, &self.slug).list().await?) })?;
        output.print_list(&services, &["NAME", "STATE", "RESTARTS", "HANDLE", "WHY"], 4, row)?;
        Ok(exit::DONE)
    }
}

fn row(service: &BottleService) -> Vec<String> {
    vec![
        service.name.clone(),
        service.state.to_owned(),
        service.restarts.to_string(),
        service.handle.clone().unwrap_or_default(),
        one_line(service.why.as_deref().unwrap_or_default()),
    ]
}

/// Start a service, and wait until it is ready
///
/// Without a command, starts a service of the bottle again that ended. A service that fails exits with 1, and its output
/// stays.
#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::running())]
    slug: Slug,
    /// The name of the service
    name: ProcessName,
    #[command(flatten)]
    readiness: ReadinessArgs,
    /// The time between two checks
    #[arg(long, value_name = "TIME", value_parser = time_limit, default_value = "500ms", requires = "command")]
    interval: Duration,
    /// The time limit for one check
    #[arg(long, value_name = "TIME", value_parser = time_limit, default_value = "5s", requires = "command")]
    timeout: Duration,
    /// The time in which it must become ready
    #[arg(long, value_name = "TIME", value_parser = time_limit, default_value = "30s", requires = "command")]
    start_period: Duration,
    /// When to start it again after it was ready and ended
    #[arg(long, value_enum, default_value_t = RestartArg::No, requires = "command")]
    restart: RestartArg,
    #[command(flatten)]
    program: ProgramArgs,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

/// When a service is ready. Without any of these, it is ready as soon as it runs.
#[derive(Debug, clap::Args)]
#[group(multiple = false, requires = "command")]
struct ReadinessArgs {
    /// Ready when a GET request to this `http://` URL of the bottle has a status from 200 to 399
    #[arg(long, value_name = "URL")]
    http: Option<String>,
    /// Ready when this port of the bottle accepts a connection
    #[arg(long, value_name = "HOST:PORT")]
    tcp: Option<String>,
    /// Ready when this file exists in the bottle
    #[arg(long, value_name = "PATH")]
    file: Option<String>,
    /// Ready when this command of the bottle's shell exits with code 0
    #[arg(long, value_name = "SCRIPT")]
    check: Option<String>,
}

impl ReadinessArgs {
    fn check(&self) -> Result<ReadinessCheck, CliError> {
        let Self { http, tcp, file, check } = self;
        let refused = |flag: &str, text: &str, error: BadCheck| {
            let hint =
                "for example `--http http://localhost:8000/`, `--tcp localhost:5432` or `--file /tmp/ready`";
            CliError::usage(format!("{text:?} {error}")).about(flag).hint(hint)
        };
        if let Some(url) = http {
            return ReadinessCheck::http(url).map_err(|error| refused("--http", url, error));
        }
        if let Some(address) = tcp {
            return ReadinessCheck::tcp(address).map_err(|error| refused("--tcp", address, error));
        }
        if let Some(path) = file {
            return ReadinessCheck::file(path).map_err(|error| refused("--file", path, error));
        }
        match check {
            Some(script) => {
                let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
                ReadinessCheck::command(argv).map_err(|error| refused("--check", script, error))
            }
            None => Ok(ReadinessCheck::started()),
        }
    }
}

/// `--restart`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum RestartArg {
    /// Never
    No,
    /// Unless it exited with code 0
    OnFailure,
    /// Always
    Always,
}

impl Start {
    fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let slug = self.slug.clone();
        let services = Services::new(host, &slug);
        let service = if self.command.is_empty() {
            until_signal(async { Ok(services.start_again(self.name).await?) })?
        } else {
            let service = block_on(self.service(host))?;
            until_signal(async { Ok(services.start(service).await?) })?
        };
        output.json_or(&service, || Ok(()))?;
        let name = &service.name;
        if service.state == ServiceState::Failed.name() {
            let why = service.why.as_deref().unwrap_or_default();
            let error = CliError::failed(format!("the service {name} did not start: {why}"));
            return Err(error
                .about(&slug)
                .hint(format!("`bottle service logs {slug} {name}` shows its output")));
        }
        output.note(format!("{name} is ready"));
        Ok(exit::DONE)
    }

    async fn service(mut self, host: &Host) -> Result<GuestService, CliError> {
        if let Some(script) = &mut self.readiness.check {
            *script = self.program.script(host, &self.slug, script).await?;
        }
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Ok(GuestService {
            readiness: self.readiness.check()?.check,
            process: self.program.process(host, &self.slug, self.command).await?,
            name: self.name,
            interval_ms: millis(self.interval),
            timeout_ms: millis(self.timeout),
            start_period_ms: millis(self.start_period),
            restart: match self.restart {
                RestartArg::No => Restart::No,
                RestartArg::OnFailure => Restart::OnFailure,
                RestartArg::Always => Restart::Always,
            },
        })
    }
}

/// Stop a service with all programs that it started
///
/// It is not started again until `bottle service start`.
#[derive(Debug, clap::Args)]
pub(crate) struct Stop {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::running())]
    slug: Slug,
    /// The name of the service
    name: ProcessName,
    /// The time between SIGTERM and SIGKILL, in seconds
    #[arg(long, default_value_t = 5, value_name = "SECONDS")]
    time: u32,
}

impl Stop {
    fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        let stop = StopService { name: self.name, grace_ms: u64::from(self.time) * 1000 };
        let service = until_signal(async { Ok(Services::new(host, &self.slug).stop(stop).await?) })?;
        output.json_or(&service, || {
            output.note(format!("{} is {}", service.name, service.state));
            Ok(())
        })?;
        Ok(exit::DONE)
    }
}

/// Runs a request until it is answered, or until a signal ends this program.
fn until_signal<T>(request: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    block_on(async {
        let mut signals = Signals::catch()?;
        tokio::select! {
            answer = request => answer,
            number = signals.end() => Err(interrupted(number)),
        }
    })
}
