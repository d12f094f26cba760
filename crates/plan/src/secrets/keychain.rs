//! Reads the password of an item in the user's keychain, with macOS's own program `security`.
//!
//! The program prints the password on its standard output, so no command line contains the password. macOS asks the
//! user for consent in a separate window, unless the user has allowed the program to read the item.

use anyhow::anyhow;
use bottle_host::Host;
use bottle_policy::secret::Secret;

use super::{SecretError, from_command, unreadable_with_hint};
use crate::SecretNeed;

/// The absolute path of the program that reads the keychain. With an absolute path, no other program on `PATH` is used
/// instead.
#[cfg(target_os = "macos")]
const SECURITY: Option<&str> = Some("/usr/bin/security");
/// Other systems have no keychain.
#[cfg(not(target_os = "macos"))]
const SECURITY: Option<&str> = None;

/// The hint for a user whose system has no keychain.
const OTHER_HINT: &str = "use `file:PATH`, or `cmd:COMMAND` with the program of your keyring, for example \
                          `cmd:secret-tool lookup service NAME`";

/// Reads the password of the item whose service name is `name`.
///
/// # Errors
/// [`SecretError::Unreadable`] when the program fails, and on a system without a keychain.
pub(super) async fn read(host: &Host, name: &str, need: &SecretNeed) -> Result<Secret, SecretError> {
    read_with(SECURITY, host, name, need).await
}

async fn read_with(
    security: Option<&str>,
    host: &Host,
    name: &str,
    need: &SecretNeed,
) -> Result<Secret, SecretError> {
    let Some(security) = security else {
        let why = anyhow!("`keychain:{name}` needs macOS, and this is {}", std::env::consts::OS);
        return Err(unreadable_with_hint(need, why, OTHER_HINT));
    };
    let argv = [security, "find-generic-password", "-w", "-s", name].map(str::to_owned);
    from_command(host, &argv, need).await
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::SecretSource;

    fn host(home: &Path) -> Host {
        Host {
            env: [("PATH".into(), "/usr/bin:/bin".into())].into(),
            cwd: home.to_owned(),
            home: home.join(".bottle"),
            user_home: home.to_owned(),
            runtime: home.join("run"),
            program: "/bin/bottle".into(),
        }
    }

    /// Reads the item `example` with a test program that runs `script`.
    async fn read_by(script: &str) -> Result<Secret, String> {
        let home = tempfile::tempdir().expect("directory");
        let program = home.path().join("security");
        // Another process writes the program's file. If this process wrote it, a child process of another test could
        // inherit the open descriptor, and the kernel would refuse to execute the file.
        let written = std::process::Command::new("/bin/sh")
            .args(["-c", r#"printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod 700 "$1""#, "sh"])
            .arg(&program)
            .arg(script)
            .status();
        assert!(written.is_ok_and(|status| status.success()));
        let source = SecretSource::Keychain("example".into());
        let need = SecretNeed { id: "x".into(), source, purpose: "route x".into(), form: None };
        let read = read_with(program.to_str(), &host(home.path()), "example", &need).await;
        read.map_err(|error| bottle_host::causes::one_line(&error))
    }

    #[tokio::test]
    async fn reads_the_password_that_the_program_prints() {
        let asked = read_by(r#"test "$*" = "find-generic-password -w -s example" && echo hush"#).await;
        assert_eq!(asked.expect("a password").expose(), "hush");
    }

    #[tokio::test]
    async fn refuses_items_that_it_cannot_read_without_showing_them() {
        for (script, cause) in [
            ("echo hush; exit 44", "exit status: 44"),
            ("true", "empty"),
            ("cat /dev/zero", "more than 65536 bytes"),
        ] {
            let error = read_by(script).await.expect_err(script);
            assert!(error.contains(cause) && error.contains("route x"), "{script}: {error}");
            assert!(!error.contains("hush"), "{error}");
        }
    }

    #[cfg(not(target_os = "macos"))]
    #[tokio::test]
    async fn a_system_without_a_keychain_says_what_works_instead() {
        let home = tempfile::tempdir().expect("directory");
        let source = SecretSource::Keychain("example".into());
        let need = SecretNeed { id: "x".into(), source, purpose: "route x".into(), form: None };
        let error = read(&host(home.path()), "example", &need).await.expect_err("no keychain");
        let message = bottle_host::causes::one_line(&error);
        assert!(message.contains("`keychain:example` needs macOS, and this is linux"), "{message}");
        assert!(error.hint().is_some_and(|hint| hint.contains("cmd:")), "{error:?}");
    }
}
