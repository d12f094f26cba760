//! Tests `gh` and `glab`, the command-line programs of GitHub and GitLab, in a bottle whose repository is behind the
//! git gate.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bottle_test_support::authority::Authority;
use bottle_test_support::forge::{GitHost, PullRequest, TOKEN, ToolApi};
use bottle_test_support::home::TestHome;
use bottle_test_support::skip;
use serde_json::json;

/// The time limit for a command, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The command-line program of a forge, and the bottle in which it runs.
struct Tool {
    /// The name of the program and of its package.
    name: &'static str,
    /// A shell script that downloads the package into the current directory.
    download: &'static str,
    /// The host of the repository.
    forge: &'static str,
    /// The host of the API.
    api: &'static str,
    start_api: fn(&Authority) -> Result<ToolApi>,
    /// The `env` of the manifest, as YAML.
    env: &'static str,
    /// The keys of the route to the API, as YAML, without `host` and `connect_to`.
    route: &'static str,
}

const GH: Tool = Tool {
    name: "gh",
    download: "apt-get download -q gh",
    forge: "github.com",
    api: "api.github.com",
    start_api: ToolApi::github,
    env: "GH_TOKEN: placeholder",
    route: "auth: {scheme: Bearer, token_ref: FORGE_TOKEN}, \
            matches: [{methods: [POST], paths: [{type: exact, value: /graphql}]}, {methods: [GET]}]",
};

const GLAB: Tool = Tool {
    name: "glab",
    download: DOWNLOAD_FROM_TRIXIE,
    forge: "gitlab.com",
    api: "gitlab.com",
    start_api: |authority| ToolApi::gitlab(authority, "gitlab.com"),
    env: "GITLAB_TOKEN: placeholder",
    route: "auth: {scheme: header, header: PRIVATE-TOKEN, token_ref: FORGE_TOKEN}",
};

/// Downloads `glab` from Debian 13, the first release with this package, from the mirror that apt uses for this
/// machine's release. apt verifies the package with Debian's keys. This run of apt has its own directories. The user
/// `_apt` may not be able to enter these directories, so apt downloads as root.
const DOWNLOAD_FROM_TRIXIE: &str = r#"
    . /etc/os-release
    mirror=$(apt-get update --print-uris | sed -n "s|^'\(.*\)/dists/$VERSION_CODENAME/InRelease'.*|\1|p" | head -n 1)
    [ "$mirror" ] || { echo "apt has no source for ${VERSION_CODENAME:-this release}" >&2; exit 1; }
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$keys target=Packages] $mirror trixie main" > sources.list
    mkdir -p lists/partial
    apt() {
        apt-get -q -o Dir::Etc::SourceList="$PWD/sources.list" -o Dir::Etc::SourceParts=/dev/null \
            -o Dir::State::Lists="$PWD/lists" -o Dir::Cache="$PWD/cache" -o APT::Sandbox::User=root \
            -o APT::Update::Error-Mode=any -o Acquire::Retries=1 -o Acquire::http::Timeout=10 "$@"
    }
    apt update
    apt download glab"#;

impl Tool {
    /// Returns the program of this machine, or else the program of the package. The package is downloaded once, even if
    /// several tests need it at the same time. An error contains the reason why no program is available.
    fn program(&self) -> Result<PathBuf, String> {
        let name = self.name;
        let installed = Path::new("/usr/bin").join(name);
        if installed.exists() {
            return Ok(installed);
        }
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // The program of another release may not run on this machine, so the script runs the program once as a check.
        let script = format!(
            "mkdir -p \"$1\"; cd \"$1\"; exec 9> lock; flock 9; [ ! -e usr ] || exit 0
             rm -rf new; mkdir new; cd new\n{}
             dpkg -x {name}_*.deb .; env -i HOME=\"$PWD\" usr/bin/{name} version; mv usr ..; cd ..; rm -rf new",
            self.download,
        );
        let output = Command::new("sh").args(["-ec", &script, name]).arg(&directory).output();
        let output = output.map_err(|error| format!("sh: {error}"))?;
        let cause = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("cannot download {name}: {}", cause.trim_end()));
        }
        Ok(directory.join("usr/bin").join(name))
    }

    /// Starts a bottle that has a clone of the forge's repository. If a requirement is missing, reports that `test` is
    /// skipped.
    fn bottle(&self, test: &str) -> Result<Option<Bottle>> {
        let home = TestHome::new()?;
        if !home.runs(test, "linux")? {
            return Ok(None);
        }
        let root = rustix::process::geteuid().is_root();
        let missing =
            GitHost::missing().or_else(|| (!root).then(|| "only root can rename this machine".to_owned()));
        match missing.map_or_else(|| self.program(), Err) {
            Ok(program) => Bottle::start(home, self, &program).map(Some),
            Err(why) => {
                skip::aloud(test, &why);
                Ok(None)
            }
        }
    }
}

/// A running bottle that contains the program of a forge, and `tool`, a clone of the forge's repository.
struct Bottle {
    home: TestHome,
    host: GitHost,
    api: ToolApi,
}

impl Bottle {
    fn start(mut home: TestHome, tool: &Tool, program: &Path) -> Result<Self> {
        let (host, authority) = (GitHost::start()?, Authority::new("Forge")?);
        let api = (tool.start_api)(&authority)?;
        let ca = home.outside("forge.pem");
        authority.write_pem(&ca)?;
        let url = host.url().replace("127.0.0.1", tool.forge);
        home.bottle(
            "forge",
            &format!(
                "---\nbackend: linux\nagent_provider: {{template: command, command: [sleep, '600']}}\n\
                 env: {{{env}}}\negress:\n  ca_bundle: {ca}\n  routes:\n  \
                 - {{host: {api_host}, connect_to: \"{address}\", {route}}}\n\
                 git-gate:\n  repos:\n    tool: {{url: '{url}', host_key: {key}, key: {{provider: static, path: {path}}}}}\n---\n",
                env = tool.env,
                ca = json!(ca),
                api_host = tool.api,
                address = api.address(),
                route = tool.route,
                key = host.host_key()?,
                path = json!(host.admit()?),
            ),
        )?;
        home.agent("forge", "---\nbottle: forge\n---\n")?;
        home.env("FORGE_TOKEN", TOKEN);
        let start = ["start", "forge", "--detach", "--label", "one", "-q", "--yes"];
        where_forge_is_local(&home, tool.forge, &start)?;
        let (program, inside) = (program.to_str().context("text")?, format!("one:/tmp/{}", tool.name));
        let _ = home.program(["cp", program, &inside])?.deadline(PATIENCE).run()?.expect_code(0);
        let bottle = Self { home, host, api };
        bottle.exec(&format!("git clone -q {url} tool"))?;
        Ok(bottle)
    }

    /// Runs a shell script in the bottle. The script must succeed. Returns its standard output.
    fn exec(&self, script: &str) -> Result<String> {
        let script = format!("PATH=$PATH:/tmp; {script}");
        let outcome =
            self.home.program(["exec", "one", "--", "sh", "-ec", &script])?.deadline(PATIENCE).run()?;
        Ok(outcome.expect_code(0).stdout)
    }

    /// Like [`Bottle::exec`], in the clone of the repository.
    fn in_clone(&self, script: &str) -> Result<String> {
        self.exec(&format!("cd tool; {script}"))
    }

    /// Checks that git shows the forge's address of the repository.
    fn check_remotes(&self, tool: &Tool) -> Result<()> {
        let shown = format!("http://{}/team/tool.git", tool.forge);
        let remotes = self.in_clone("git remote -v")?;
        ensure!(remotes == format!("origin\t{shown} (fetch)\norigin\t{shown} (push)\n"), "{remotes}");
        Ok(())
    }

    /// Pushes a new branch, and creates a pull request for it with the command `create`. Returns the output of
    /// `create`.
    fn create_pull_request(&self, create: &str) -> Result<String> {
        let created = self.in_clone(&format!(
            "git checkout -q -b work; git commit -q --allow-empty -m work; git push -q -u origin work; {create}"
        ))?;
        let wanted = PullRequest { title: "Change".into(), head: "work".into(), base: "main".into() };
        let found = self.api.pull_request();
        ensure!(found.as_ref() == Some(&wanted), "{found:?}");
        ensure!(self.host.log("work")?.starts_with("work\n"), "the push did not arrive");
        Ok(created)
    }
}

/// Runs a `bottle` command for which the host `forge` is this machine. Only root can change the names of hosts.
fn where_forge_is_local(home: &TestHome, forge: &str, arguments: &[&str]) -> Result<()> {
    let hosts = home.write("hosts", &format!("127.0.0.1 localhost {forge}\n"))?;
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
    let Some(bottle) = GH.bottle("gh in a bottle")? else { return Ok(()) };
    bottle.check_remotes(&GH)?;
    let viewed = bottle.in_clone("gh repo view")?;
    ensure!(viewed.contains("team/tool") && viewed.contains("A tool for tests"), "{viewed}");
    let created = bottle.create_pull_request("gh pr create --title Change --body Text")?;
    ensure!(created.contains("https://github.com/team/tool/pull/7"), "{created}");
    let listed = bottle.in_clone("gh pr list")?;
    ensure!(listed.starts_with("7\tChange\twork"), "{listed}");
    Ok(())
}

#[test]
fn glab_finds_the_project_and_creates_a_merge_request() -> Result<()> {
    creates_a_merge_request("glab in a bottle", &GLAB)
}

#[test]
fn glab_finds_the_project_at_the_host_that_the_bottle_names() -> Result<()> {
    let tool = Tool {
        forge: "git.example.com",
        api: "git.example.com",
        start_api: |authority| ToolApi::gitlab(authority, "git.example.com"),
        env: "GITLAB_TOKEN: placeholder, GITLAB_HOST: git.example.com",
        ..GLAB
    };
    creates_a_merge_request("glab in a bottle with GITLAB_HOST", &tool)
}

fn creates_a_merge_request(test: &str, tool: &Tool) -> Result<()> {
    let Some(bottle) = tool.bottle(test)? else { return Ok(()) };
    bottle.check_remotes(tool)?;
    let viewed = bottle.in_clone("glab repo view")?;
    ensure!(viewed.contains("Team / Tool") && viewed.contains("A tool for tests"), "{viewed}");
    // glab asks the remote repository for its default branch, and uses this branch as the target.
    let created = bottle.create_pull_request("glab mr create --title Change --description Text --yes")?;
    ensure!(created.contains(&format!("https://{}/team/tool/-/merge_requests/7", tool.forge)), "{created}");
    let listed = bottle.in_clone("glab mr list")?;
    ensure!(listed.contains("!7\tteam/tool!7\tChange\t(main) ← (work)"), "{listed}");
    let merged =
        bottle.in_clone("! glab api --method PUT projects/team%2Ftool/merge_requests/7/merge 2>&1")?;
    ensure!(merged.contains("use-git-gate"), "{merged}");
    Ok(())
}
