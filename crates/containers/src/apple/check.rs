//! Checks whether this machine can run bottles with `container`.

use std::time::Duration;

use bottle_backend::Finding;
use bottle_backend::command_line::runner::{Program, RunError};
use bottle_host::causes;

use super::args;
use super::output::{self, Version};

/// The oldest supported version of `container`. Its commands and options are those of version 1.2.2, from whose sources
/// the directory `grammar` was made: the two versions differ only in the plugin `k8s`. Older versions do not protect
/// `/proc` in containers (before 1.2), break the sockets of containers without a network (1.0), or report other JSON.
pub(super) const OLDEST: Version = Version(1, 2, 1);

/// The oldest supported version of macOS. Older versions lack the networks of `container`.
const OLDEST_SYSTEM: Version = Version(26, 0, 0);

/// How long a program may take to print its version or status.
const DEADLINE: Duration = Duration::from_secs(20);

/// The hint that says how to install `container`.
const INSTALL: &str =
    "install `container` 1.2.1 or newer from github.com/apple/container, and put it on your PATH";

/// The facts about this machine that decide whether containers can start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    /// The version of macOS. `None` on another system.
    pub(super) system: Option<Version>,
    /// The version of `container`, or the reason why it is unknown.
    pub(super) version: Result<Version, String>,
    /// Whether the services of `container` run, or the reason why this is unknown.
    pub(super) running: Result<bool, String>,
}

impl Facts {
    /// Reads the facts of this machine. Calls `container` only on macOS.
    pub(super) async fn read(container: &Program, sw_vers: &Program) -> Self {
        let output = sw_vers.run(&["-productVersion".into()], DEADLINE).await;
        let system = output.ok().and_then(|output| output::system_version(&output.stdout));
        let unknown = "it was not asked".to_owned();
        if system.is_none() {
            return Self { system, version: Err(unknown.clone()), running: Err(unknown) };
        }
        let version = version(container).await;
        let running = if version.is_ok() { running(container).await } else { Err(unknown) };
        Self { system, version, running }
    }

    /// Returns the problems, the most important first. A container starts only if there is no problem. A problem that
    /// causes other problems hides them.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let one = |what: String, fix: &str| vec![Finding { what, fix: fix.to_owned() }];
        let needs =
            format!("the apple backend needs macOS {} and `container` {OLDEST}, or newer", OLDEST_SYSTEM.0);
        match self.system {
            None => return one(format!("{needs}, and this is not macOS"), "use another backend"),
            Some(system) if system < OLDEST_SYSTEM => {
                return one(
                    format!("{needs}, and this is macOS {system}"),
                    "update macOS, or use another backend",
                );
            }
            Some(_) => {}
        }
        match &self.version {
            Err(why) => return one(why.clone(), INSTALL),
            Ok(version) if *version < OLDEST => {
                return one(format!("{needs}, and `container` is {version}"), INSTALL);
            }
            Ok(_) => {}
        }
        let start = "`container system start --enable-kernel-install`";
        match &self.running {
            Ok(true) => Vec::new(),
            Ok(false) => one("the services of `container` do not run".to_owned(), start),
            Err(why) => one(why.clone(), start),
        }
    }
}

async fn version(program: &Program) -> Result<Version, String> {
    match program.run(&args::version(), DEADLINE).await {
        Ok(output) => output::version(&output.stdout).ok_or_else(|| {
            "`container --version` prints no version: another program has this name".to_owned()
        }),
        Err(error @ RunError::Missing(_)) => Err(error.to_string()),
        Err(error) => Err(format!("cannot ask `container` for its version: {}", causes::one_line(&error))),
    }
}

/// Returns whether the services of `container` run. The exit code of the command decides, because the JSON changed
/// between versions: the command fails with exit code 1 if the services do not run. Only a readable status can
/// contradict an exit code of 0.
async fn running(program: &Program) -> Result<bool, String> {
    match program.run(&args::status(), DEADLINE).await {
        Ok(output) => Ok(output::service_status(&output.stdout).is_none_or(|status| status == "running")),
        Err(RunError::Failed { status, .. }) if status.code() == Some(1) => Ok(false),
        Err(error) => Err(format!("cannot ask for the status of `container`: {}", causes::one_line(&error))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_program::program;
    use super::*;

    fn fine() -> Facts {
        Facts { system: Some(OLDEST_SYSTEM), version: Ok(OLDEST), running: Ok(true) }
    }

    #[test]
    fn names_the_first_problem_with_its_fix() {
        let missing = || Err("`container` is not installed".to_owned());
        for (facts, expected, fix) in [
            (Facts { system: None, ..fine() }, "this is not macOS", "another backend"),
            (
                Facts { system: Some(Version(15, 6, 0)), version: missing(), ..fine() },
                "this is macOS 15.6.0",
                "update",
            ),
            (
                Facts { version: Ok(Version(1, 2, 0)), running: Ok(false), ..fine() },
                "`container` is 1.2.0",
                "install",
            ),
            (Facts { version: missing(), running: Ok(false), ..fine() }, "not installed", "PATH"),
            (Facts { running: Ok(false), ..fine() }, "do not run", "container system start"),
        ] {
            let findings = facts.findings();
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(findings[0].what.contains(expected) && findings[0].fix.contains(fix), "{findings:?}");
        }
        let old = Facts { version: Ok(Version(0, 9, 0)), ..fine() }.findings();
        assert!(old[0].what.contains("macOS 26 and `container` 1.2.1, or newer"), "{old:?}");
        for facts in
            [fine(), Facts { version: Ok(Version(1, 4, 1)), system: Some(Version(26, 5, 2)), ..fine() }]
        {
            assert_eq!(facts.findings(), []);
        }
    }

    #[tokio::test]
    async fn reads_the_facts_of_programs_that_fail_hang_or_print_garbage() {
        let (_directory, system) = program("sw_vers", "echo 26.1");
        let read = async |script: &str| {
            let (_directory, container) = program("container", script);
            Facts::read(&container, &system).await.findings()
        };
        let answers = "case $1 in --version) echo 'container CLI version 1.4.1 (build: release)';; ";
        // A version that prints the status in a new form still says by its exit code that the services run.
        for status in ["{\"status\":\"running\"}", "{\"services\":[\"running\"]}", ""] {
            assert_eq!(read(&format!("{answers} *) echo '{status}';; esac")).await, [], "{status}");
        }
        for (script, expected) in [
            (format!("{answers} *) echo '{{\"status\":\"not running\"}}'; exit 1;; esac"), "do not run"),
            (format!("{answers} *) echo '{{\"status\":\"unregistered\"}}';; esac"), "do not run"),
            (format!("{answers} *) echo 'Error: no' >&2; exit 64;; esac"), "(exit 64): Error: no"),
            ("echo hello".to_owned(), "prints no version"),
            ("echo 'Error: no services' >&2; exit 1".to_owned(), "Error: no services"),
            ("kill -9 $$".to_owned(), "signal 9"),
        ] {
            let findings = read(&script).await;
            assert!(findings[0].what.contains(expected), "{script}: {findings:?}");
        }
        let (_directory, other) = program("container", "echo called >&2; exit 1");
        let (_directory, linux) = program("sw_vers", "exit 127");
        let findings = Facts::read(&other, &linux).await.findings();
        assert!(findings[0].what.ends_with("this is not macOS"), "{findings:?}");
    }
}
