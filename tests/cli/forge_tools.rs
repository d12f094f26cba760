//! Tests `gh`, the command-line program of GitHub, in a bottle whose repository is behind the git gate.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bottle_test_support::authority::Authority;
use bottle_test_support::forge::{GitHost, GithubApi, TOKEN};
use bottle_test_support::home::TestHome;
use bottle_test_support::skip;
use serde_json::json;

/// The time limit for a command, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns `gh`: this machine's, or that of the distribution's package, which is downloaded once. An error says why
/// there is none.
fn gh() -> Result<PathBuf, String> {
    let installed = Path::new("/usr/bin/gh");
    if installed.exists() {
        return Ok(installed.to_owned());
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gh");
    let program = folder.join("usr/bin/gh");
    if !program.exists() {
        let run = |script: &str| {
            let output = Command::new("sh").args(["-ec", script]).arg("gh").arg(&folder).output();
            let output = output.map_err(|error| error.to_string())?;
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() { Ok(()) } else { Err(format!("cannot download gh: {text}")) }
        };
        run("mkdir -p \"$1\"; cd \"$1\"; apt-get download -q gh; dpkg -x gh_*.deb .")?;
    }
    Ok(program)
}

/// Runs a `bottle` command for which `github.com` is this machine. Only root can change the names of hosts.
fn where_github_is_local(home: &TestHome, arguments: &[&str]) -> Result<()> {
    let hosts = home.write("hosts", "127.0.0.1 localhost github.com\n")?;
    let program = home.program(arguments.iter().copied())?;
    let command = program.command();
    let mut unshared = Command::new("unshare");
    unshared.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    unshared.args(["--mount", "sh", "-ec", "mount --bind \"$1\" /etc/hosts; shift; exec \"$@\"", "sh"]);
    unshared.arg(hosts).arg(command.get_program()).args(command.get_args()).current_dir(home.project());
    let output = unshared.output().context("unshare")?;
    ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[test]
fn gh_finds_the_repository_and_creates_a_pull_request() -> Result<()> {
    let test = "gh in a bottle";
    let mut home = TestHome::new()?;
    if !home.runs(test, "linux")? {
        return Ok(());
    }
    let root = rustix::process::geteuid().is_root();
    let missing =
        GitHost::missing().or_else(|| (!root).then(|| "only root can rename this machine".to_owned()));
    let gh = match missing.map_or_else(gh, Err) {
        Ok(gh) => gh,
        Err(why) => {
            skip::aloud(test, &why);
            return Ok(());
        }
    };
    let (host, authority) = (GitHost::start()?, Authority::new("GitHub")?);
    let api = GithubApi::start(&authority)?;
    let ca = home.outside("github.pem");
    authority.write_pem(&ca)?;
    let url = host.url().replace("127.0.0.1", "github.com");
    home.bottle(
        "forge",
        &format!(
            "---\nbackend: linux\nagent_provider: {{template: command, command: [sleep, '600']}}\n\
             env: {{GH_TOKEN: placeholder}}\negress:\n  ca_bundle: {ca}\n  routes:\n  - host: api.github.com\n    \
             connect_to: \"{address}\"\n    auth: {{scheme: Bearer, token_ref: GITHUB_TOKEN}}\n    \
             matches: [{{methods: [POST], paths: [{{type: exact, value: /graphql}}]}}, {{methods: [GET]}}]\n\
             git-gate:\n  repos:\n    tool: {{url: '{url}', host_key: {key}, key: {{provider: static, path: {path}}}}}\n---\n",
            ca = json!(ca),
            address = api.address(),
            key = host.host_key()?,
            path = json!(host.admit()?),
        ),
    )?;
    home.agent("forge", "---\nbottle: forge\n---\n")?;
    home.env("GITHUB_TOKEN", TOKEN);
    where_github_is_local(&home, &["start", "forge", "--detach", "--label", "one", "-q", "--yes"])?;
    let gh = gh.to_str().context("text")?;
    let _ = home.program(["cp", gh, "one:/tmp/gh"])?.deadline(PATIENCE).run()?.expect_code(0);
    let inside = |script: &str| {
        let script = format!("PATH=$PATH:/tmp; {script}");
        home.program(["exec", "one", "--", "sh", "-ec", &script])?.deadline(PATIENCE).run()
    };
    let remotes = inside(&format!("git clone -q {url} tool; cd tool; git remote -v"))?.expect_code(0).stdout;
    let shown = "http://github.com/team/tool.git";
    ensure!(remotes == format!("origin\t{shown} (fetch)\norigin\t{shown} (push)\n"), "{remotes}");
    let viewed = inside("cd tool; gh repo view")?.expect_code(0).stdout;
    ensure!(viewed.contains("team/tool") && viewed.contains("A tool for tests"), "{viewed}");
    let created = inside(
        "cd tool; git checkout -q -b work; git commit -q --allow-empty -m work; git push -q -u origin work; \
         gh pr create --title Change --body Text",
    )?;
    let created = created.expect_code(0).stdout;
    ensure!(created.contains("https://github.com/team/tool/pull/7"), "{created}");
    ensure!(api.pull_request().as_deref() == Some("work"), "{:?}", api.pull_request());
    ensure!(host.log("work")?.starts_with("work\n"), "the push did not arrive");
    let listed = inside("cd tool; gh pr list")?.expect_code(0).stdout;
    ensure!(listed.starts_with("7\tChange\twork"), "{listed}");
    Ok(())
}
