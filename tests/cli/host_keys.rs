//! Tests the host key of a repository: it is pinned in the manifest or in `known_hosts`, or it is missing,
//! which is reported before the start.

use anyhow::Result;
use bottle_test_support::home::TestHome;

use crate::home::run;

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";

/// Returns a home with a repository whose host key is unknown.
fn home() -> Result<TestHome> {
    let mut home = TestHome::new()?;
    let text = "---\nbackend: fake\nagent_provider: {template: command, command: [sleep, '600']}\ngit-gate:\n  repos:\n    \
                tool: {url: 'ssh://git@host.invalid:2222/team/tool.git', key: {provider: static, path: ~/key}}\n---\n";
    home.bottle("work", text)?.agent("work", "---\nbottle: work\n---\n")?;
    // The file `~/key` is not created, because `bottle` checks the host key before it reads the private key.
    Ok(home)
}

#[test]
fn reports_an_unknown_host_key_before_the_start() -> Result<()> {
    let home = home()?;
    for arguments in [
        &["start", "work", "--dry-run"][..],
        &["start", "work", "--detach", "--label", "one"],
        &["start", "work", "--yes", "--label", "one"],
    ] {
        let said = run(&home, arguments)?.expect_code(2);
        for words in [
            "the repository tool has no `host_key`",
            "does not know its host host.invalid, port 2222",
            "`ssh-keyscan -p 2222 -t ed25519 host.invalid`",
            "git-gate.repos.tool.host_key",
        ] {
            assert!(said.stderr.contains(words), "{arguments:?}: no {words}: {}", said.stderr);
        }
        assert!(!home.bottle_home().join("state").exists(), "{arguments:?}");
    }
    Ok(())
}

#[test]
fn a_known_host_needs_no_pinned_key() -> Result<()> {
    let home = home()?;
    home.write("home/.ssh/known_hosts", &format!("elsewhere.example.com {KEY}\n"))?;
    let _ = run(&home, &["start", "work", "--dry-run"])?.expect_code(2);
    home.write("home/.ssh/known_hosts", &format!("[host.invalid]:2222 {KEY}\n"))?;
    let _ = run(&home, &["start", "work", "--dry-run"])?.expect_code(0);
    Ok(())
}
