//! Creates, starts, lists and deletes the virtual machines of one home.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bottle_backend::command_line::runner::{Output, Program, RunError, last_words};
use bottle_backend::{BackendError, BackendErrorKind};
use bottle_host::Host;
use bottle_policy::names::Slug;

use super::args::{Machines as Arguments, NewMachine};
use super::output::{self, Machine, NOT_FOUND};
use super::{NAME, inside};

/// The environment variables through which smolvm finds the files of its installation.
const VARIABLES: [&str; 2] = ["SMOLVM_LIB_DIR", "SMOLVM_AGENT_ROOTFS"];

/// How long smolvm may take to write a configuration or to list machines.
const QUICK: Duration = Duration::from_secs(60);

/// How long a machine may take to start. The first start in a home unpacks smolvm's own system.
const START: Duration = Duration::from_secs(180);

/// How long smolvm may take to stop and delete a machine. smolvm waits up to ten seconds for the programs in the
/// machine to exit, and they do not exit by themselves.
const DELETE: Duration = Duration::from_secs(60);

/// The number of lines of a machine's output that are searched for an error message.
const LOG_LINES: u32 = 20;

/// The length limit in bytes for the path of the machines' directory. smolvm binds sockets in this directory. Their
/// paths are up to 60 bytes longer than the directory's path, and the kernel limits the path of a socket to 107 bytes.
const DIRECTORY_MAX: usize = 47;

/// The kernel's length limit for the path of a socket, in bytes.
const SOCKET_MAX: usize = 107;

/// The machines of one home.
#[derive(Debug)]
pub(super) struct Machines {
    /// The program `smolvm`.
    pub(super) program: Program,
    /// The directory in which smolvm stores all files of the machines.
    pub(super) directory: PathBuf,
    /// The hash of the home.
    home: String,
    arguments: Arguments,
}

impl Machines {
    /// Creates the value for the machines of the home of `host`. The directory of the machines is in the home, or in
    /// `runtime` if the home's path is too long.
    pub(super) fn new(host: &Host, runtime: &Path) -> Self {
        let in_home = host.home.join(NAME);
        let short = in_home.as_os_str().len() <= DIRECTORY_MAX;
        let directory = if short { in_home } else { runtime.join(".m") };
        let arguments = Arguments { state: directory.clone() };
        Self { program: Program::new(host, NAME, &VARIABLES), directory, home: host.home_hash(), arguments }
    }

    /// If the path of the machines' directory is too long, returns a message about the problem.
    pub(super) fn too_long(&self) -> Option<String> {
        let length = self.directory.as_os_str().as_bytes().len();
        (length > DIRECTORY_MAX).then(|| {
            format!(
                "the path {} is too long for smolvm's sockets: it has {length} bytes, and {DIRECTORY_MAX} are possible",
                self.directory.display()
            )
        })
    }

    /// The name of a bottle's machine.
    pub(super) fn name(slug: &Slug) -> String {
        format!("bottle-{slug}")
    }

    /// The hash of the home, which the labels of the machines contain.
    pub(super) fn home(&self) -> String {
        self.home.clone()
    }

    /// Lists the bottles that have a machine. Does not run smolvm if no machine was ever created.
    ///
    /// # Errors
    /// [`BackendError`] when there may be machines and smolvm fails to list them.
    pub(super) async fn list(&self) -> Result<Vec<(Slug, Machine)>, BackendError> {
        if !self.exist() {
            return Ok(Vec::new());
        }
        let output = match self.program.run(&self.arguments.list(), QUICK).await {
            // If smolvm is not installed, no machine can be used.
            Err(RunError::Missing(_)) => return Ok(Vec::new()),
            listed => listed.map_err(|error| explain("list the machines of smolvm", error))?,
        };
        let listed = output::machines(&output.stdout, &self.home).map_err(|error| {
            BackendError::failed("cannot list the machines of smolvm: `smolvm machine ls` printed no list")
                .because(error)
        })?;
        // A machine with another name does not belong to this backend, even if its labels name a bottle.
        let own = listed.into_iter().filter_map(|machine| Some((machine.slug.clone()?, machine)));
        Ok(own.filter(|(slug, machine)| machine.name == Self::name(slug)).collect())
    }

    /// Whether smolvm has stored files of machines in the directory.
    fn exist(&self) -> bool {
        std::fs::read_dir(&self.directory).is_ok_and(|mut entries| {
            entries.any(|entry| entry.is_ok_and(|entry| entry.file_name().as_bytes().starts_with(b".cache")))
        })
    }

    /// Creates a machine. Replaces a machine of the same name that a crashed start left behind.
    ///
    /// # Errors
    /// [`BackendError`] when a path is too long, or smolvm refuses.
    pub(super) async fn create(&self, new: &NewMachine) -> Result<(), BackendError> {
        let longest = inside::longest_socket(new);
        if longest > SOCKET_MAX {
            return Err(BackendError::failed(format!(
                "cannot start {}: the path of a socket has {longest} bytes, and {SOCKET_MAX} are possible",
                new.slug
            ))
            .with_hint("set XDG_RUNTIME_DIR to a directory with a shorter path"));
        }
        if self.list().await?.iter().any(|(slug, _)| *slug == new.slug) {
            self.delete(&new.slug).await?;
        }
        self.run(&format!("create the machine of {}", new.slug), &self.arguments.create(new), QUICK)
            .await
            .map(drop)
    }

    /// Starts a machine. Returns when the machine's first process has been started.
    ///
    /// # Errors
    /// [`BackendError`] when the machine does not start.
    pub(super) async fn start(&self, slug: &Slug) -> Result<(), BackendError> {
        let name = Self::name(slug);
        self.run(&format!("start the machine of {slug}"), &self.arguments.start(&name), START).await.map(drop)
    }

    /// The last line that the machine's first process wrote.
    pub(super) async fn last_words(&self, slug: &Slug) -> Option<String> {
        let logs = self.arguments.logs(&Self::name(slug), LOG_LINES);
        let output = self.program.run(&logs, QUICK).await.ok()?;
        Some(last_words(&output.stdout)).filter(|line| !line.is_empty())
    }

    /// Stops and deletes a machine. A missing machine is no error.
    ///
    /// # Errors
    /// [`BackendError`] when smolvm cannot delete the machine.
    pub(super) async fn delete(&self, slug: &Slug) -> Result<(), BackendError> {
        if !self.exist() {
            return Ok(());
        }
        let deletion = self.arguments.delete(&Self::name(slug));
        match self.program.run(&deletion, DELETE).await {
            Err(error) if output::error(error.stderr()).is_some_and(|error| error.code == NOT_FOUND) => {
                Ok(())
            }
            deleted => {
                deleted.map(drop).map_err(|error| explain(&format!("delete the machine of {slug}"), error))
            }
        }
    }

    async fn run(
        &self,
        action: &str,
        arguments: &[OsString],
        within: Duration,
    ) -> Result<Output, BackendError> {
        self.program.run(arguments, within).await.map_err(|error| explain(action, error))
    }
}

/// Creates the error for a failed call of smolvm. If smolvm printed an error as JSON, the created error contains the
/// message of that error. Otherwise, `error` is the cause of the created error.
fn explain(action: &str, error: RunError) -> BackendError {
    let message = format!("cannot {action}");
    if let Some(error) = output::error(error.stderr()) {
        let words = last_words(error.message.as_bytes());
        return BackendError::failed(format!("{message}: {words} ({})", last_words(error.code.as_bytes())));
    }
    let hint = match &error {
        RunError::Missing(_) => Some("install smolvm, and put it on your PATH".to_owned()),
        RunError::Late { .. } => {
            Some("`bottle cleanup` removes what the call left; then try again".to_owned())
        }
        _ => None,
    };
    let kind = match &error {
        RunError::Missing(_) => BackendErrorKind::Unavailable,
        _ => BackendErrorKind::Failed,
    };
    let error = BackendError::new(kind, message).because(error);
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use bottle_test_support::script_file::script_file;

    use super::*;

    /// Creates a home in which `smolvm` is this shell script. In the script, `$2` is the verb, for example `create`.
    fn machines(script: Option<&str>) -> (tempfile::TempDir, Machines) {
        let directory = tempfile::Builder::new().prefix("b").tempdir().expect("directory");
        if let Some(script) = script {
            let program = directory.path().join(NAME);
            script_file(&program, &format!("echo \"$*\" >> {}/calls\n{script}", directory.path().display()));
        }
        let path = format!("{}:/usr/bin:/bin", directory.path().display());
        let host = Host {
            env: [("PATH".into(), path.into())].into(),
            cwd: "/".into(),
            home: directory.path().join("home"),
            user_home: directory.path().into(),
            runtime: directory.path().join("run"),
            program: "/bottle".into(),
        };
        let machines = Machines::new(&host, &host.runtime);
        fs::create_dir_all(machines.directory.join(".cache")).expect("smolvm's files");
        (directory, machines)
    }

    fn slug() -> Slug {
        "a-1".parse().expect("slug")
    }

    #[tokio::test]
    async fn without_smolvm_there_are_no_machines_and_a_call_names_it() {
        let (_directory, machines) = machines(None);
        assert_eq!(machines.list().await.expect("listed"), []);
        let error = machines.start(&slug()).await.expect_err("missing");
        assert_eq!(error.kind, BackendErrorKind::Unavailable);
        assert_eq!(error.one_line(), "cannot start the machine of a-1: `smolvm` is not installed");
    }

    #[tokio::test]
    async fn lists_only_machines_with_the_name_and_the_labels_of_a_bottle() {
        let (directory, machines) = machines(Some(r#"cat "$(dirname "$0")/list""#));
        let hash = machines.home();
        let machine = |name: &str, home: &str, slug: &str| {
            let labels = format!(r#"{{"bottle.home":"{home}","bottle.slug":"{slug}"}}"#);
            format!(r#"{{"name":"{name}","state":"running","labels":{labels}}}"#)
        };
        let list = [
            machine("bottle-a-1", &hash, "a-1"),
            machine("other", &hash, "a-2"),
            machine("bottle-a-3", "ffffffff", "a-3"),
        ];
        fs::write(directory.path().join("list"), format!("[{}]", list.join(","))).expect("written");
        let listed = machines.list().await.expect("listed");
        assert_eq!(listed.iter().map(|(slug, _)| slug.as_str()).collect::<Vec<_>>(), ["a-1"]);
    }

    #[tokio::test]
    async fn garbage_in_place_of_a_list_is_an_error() {
        for script in
            ["echo 'warning: a new version'; echo '[]'", "printf '\\033[31m\\377'", "true", "echo '{}'"]
        {
            let (_directory, machines) = machines(Some(script));
            let error = machines.list().await.expect_err(script).one_line();
            assert!(error.starts_with("cannot list the machines of smolvm: "), "{error}");
        }
    }

    #[tokio::test]
    async fn an_error_among_progress_is_shown_with_its_code() {
        let script = r#"yes 'unpacking 1s' | head -5000 >&2
            echo '{"error":{"code":"SMOLVM_ERROR","message":"the disk is full"}}' >&2; exit 1"#;
        let (_directory, machines) = machines(Some(script));
        let error = machines.start(&slug()).await.expect_err("failed");
        assert_eq!(error.one_line(), "cannot start the machine of a-1: the disk is full (SMOLVM_ERROR)");
        let (_directory, usage) =
            self::machines(Some("echo \"error: unexpected argument '--label'\" >&2; exit 2"));
        let error = usage.start(&slug()).await.expect_err("failed").one_line();
        assert!(error.contains("(exit 2): error: unexpected argument"), "{error}");
    }

    #[tokio::test]
    async fn a_missing_machine_is_deleted_and_another_failure_is_not_hidden() {
        let missing = r#"echo '{"error":{"code":"NOT_FOUND","message":"vm not found"}}' >&2; exit 1"#;
        let (directory, machines) = machines(Some(missing));
        machines.delete(&slug()).await.expect("already deleted");
        let calls = fs::read_to_string(directory.path().join("calls")).expect("called");
        assert!(calls.contains("machine delete") && calls.contains("--name bottle-a-1 --force"), "{calls}");
        let (_directory, busy) = self::machines(Some("echo busy >&2; exit 1"));
        let error = busy.delete(&slug()).await.expect_err("failed").one_line();
        assert_eq!(error, "cannot delete the machine of a-1: `smolvm machine delete` failed (exit 1): busy");
    }

    #[test]
    fn a_long_home_moves_the_machines_to_the_runtime_directory() {
        let (_directory, machines) = machines(None);
        assert!(machines.directory.ends_with("home/smolvm") && machines.too_long().is_none());
        let host = |home: &str| Host {
            env: Default::default(),
            cwd: "/".into(),
            home: home.into(),
            user_home: "/".into(),
            runtime: "/run/b".into(),
            program: "/bottle".into(),
        };
        let long = format!("/home/{}", "x".repeat(60));
        let moved = Machines::new(&host(&long), Path::new("/run/b/.vm"));
        assert!(moved.directory == Path::new("/run/b/.vm/.m") && moved.too_long().is_none());
        let both = Machines::new(&host(&long), Path::new(&long));
        assert!(both.too_long().is_some_and(|why| why.contains("47 are possible")));
    }
}
