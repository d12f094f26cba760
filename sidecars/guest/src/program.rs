//! Builds the command for a process in a request: the program, the environment, the working directory and the user.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use bottle_policy::names::WORKSPACE;
use bottle_policy::secret::Secret;
use bottle_protocol::session::guest::{FailureKind, Process};
use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::config::Programs;
use crate::facts::Facts;
use crate::failure::{Outcome, failed, other};

/// The value of `PATH` if neither the provisioned environment nor the request sets it.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The value of `TERM` for a process with a terminal, if neither the provisioned environment nor the request
/// sets it.
const DEFAULT_TERM: &str = "xterm-256color";

/// The maximum number of bytes that are read from the user database `/etc/passwd`. The rest of the file is ignored.
const PASSWD_MAX: u64 = 1 << 20;

/// Builds the command for `process`, without its standard streams.
pub(crate) fn command(
    facts: &Facts,
    provisioned: &BTreeMap<String, Secret>,
    process: &Process,
) -> Outcome<Command> {
    let environment = environment(provisioned, process)?;
    let directory = facts.inside(process.cwd.as_deref().unwrap_or(WORKSPACE));
    if !directory.is_dir() {
        let shown = process.cwd.as_deref().unwrap_or(WORKSPACE);
        return Err(failed(FailureKind::BadPath, format!("the working directory {shown:?} does not exist")));
    }
    let Some((name, arguments)) = process.argv.split_first() else {
        return Err(other("the request names no program"));
    };
    let mut command = match &facts.programs {
        Programs::Any => {
            let path = environment.iter().find(|(key, _)| *key == "PATH").map(|(_, value)| *value);
            let mut command = Command::new(find(name, path.unwrap_or(DEFAULT_PATH), &directory)?);
            command.arg0(name).args(arguments);
            command
        }
        #[cfg(feature = "test-parts")]
        Programs::BuiltIn { exe } => {
            let mut command = Command::new(exe);
            command.arg("__fake-program").args(&process.argv);
            command
        }
    };
    command.env_clear().envs(environment).current_dir(directory);
    if let Some(user) = &process.user {
        let account = look_up(facts, user)?;
        let own = rustix::process::geteuid();
        if account.uid != own.as_raw() {
            // The guest checks the user itself, because its message is clearer than the kernel's error for `setuid`.
            if !own.is_root() {
                return Err(other(format!("the bottle has one user, and cannot run a program as {user:?}")));
            }
            command.uid(account.uid).gid(account.gid);
        }
    }
    Ok(command)
}

/// A user and a group, as numbers.
#[derive(Debug, Clone, Copy)]
struct Account {
    uid: u32,
    gid: u32,
}

fn environment<'a>(
    provisioned: &'a BTreeMap<String, Secret>,
    process: &'a Process,
) -> Outcome<Vec<(&'a str, &'a str)>> {
    let mut merged: BTreeMap<&str, &str> = BTreeMap::from([("PATH", DEFAULT_PATH)]);
    if process.terminal.is_some() {
        merged.insert("TERM", DEFAULT_TERM);
    }
    merged.extend(provisioned.iter().map(|(key, value)| (key.as_str(), value.expose())));
    merged.extend(process.env.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    match merged.iter().find(|(key, value)| !is_variable(key, value)) {
        // The message contains only the name, because the value may be secret.
        Some((key, _)) => Err(other(format!("cannot set the environment variable {key:?}"))),
        None => Ok(merged.into_iter().collect()),
    }
}

/// Returns whether the kernel can represent an environment variable as `key=value`.
pub(crate) fn is_variable(key: &str, value: &str) -> bool {
    !key.is_empty() && !key.contains(['=', '\0']) && !value.contains('\0')
}

/// Finds a program as a shell does. A name with a slash is a path relative to `directory`. Any other name is searched
/// in the directories of `path`. Returns the first executable file.
fn find(name: &str, path: &str, directory: &Path) -> Outcome<PathBuf> {
    let candidates: Vec<PathBuf> = if name.contains('/') {
        vec![directory.join(name)]
    } else {
        let directories = path.split(':').map(|entry| if entry.is_empty() { "." } else { entry });
        directories.map(|entry| directory.join(entry).join(name)).collect()
    };
    let files: Vec<PathBuf> = candidates.into_iter().filter(|file| file.exists()).collect();
    if let Some(file) = files.iter().find(|file| is_executable(file)) {
        return Ok(file.clone());
    }
    Err(match files.first() {
        Some(_) => failed(FailureKind::NotExecutable, format!("the program {name:?} cannot be executed")),
        None => failed(FailureKind::NotFound, format!("the program {name:?} is not in the bottle")),
    })
}

fn is_executable(file: &Path) -> bool {
    file.is_file() && accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

/// Finds a user by name or number in the bottle's user database. A number is accepted even if the database has no entry
/// for it.
fn look_up(facts: &Facts, user: &str) -> Outcome<Account> {
    let database = read_bounded(&facts.inside("/etc/passwd"));
    let number = user.parse::<u32>().ok();
    let entry = database.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _password) = (fields.next()?, fields.next()?);
        let uid = fields.next()?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        (name == user || Some(uid) == number).then_some(Account { uid, gid })
    });
    entry
        .or(number.map(|number| Account { uid: number, gid: number }))
        .ok_or_else(|| other(format!("the user {user:?} is not in the bottle")))
}

fn read_bounded(file: &Path) -> String {
    use std::io::Read;
    let mut text = String::new();
    // A database that does not exist or is not UTF-8 is treated as empty.
    if let Ok(file) = std::fs::File::open(file)
        && file.take(PASSWD_MAX).read_to_string(&mut text).is_err()
    {
        text.clear();
    }
    text
}

/// Converts the error for a program that was found but could not be started.
pub(crate) fn explain(program: &OsStr, error: &std::io::Error) -> bottle_protocol::session::guest::Failure {
    let kind = match error.kind() {
        // The file of the program exists, so `NotFound` means that its interpreter is missing.
        std::io::ErrorKind::NotFound | std::io::ErrorKind::PermissionDenied => FailureKind::NotExecutable,
        _ if error.raw_os_error() == Some(nix::libc::ENOEXEC) => FailureKind::NotExecutable,
        _ => FailureKind::Other,
    };
    failed(kind, format!("cannot start the program {program:?}: {error}"))
}
