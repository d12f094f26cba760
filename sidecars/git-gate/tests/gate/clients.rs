//! Tests submodules, the library libgit2 as a client, and an upstream over https.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use bottle_protocol::session::git_gate::GateKey;
use bottle_test_support::killed_on_drop::KilledOnDrop;
use bottle_test_support::{python, skip};

use crate::scene::{Scene, connect, until};

/// Writes the `~/.gitconfig` of a bottle. The configuration replaces the upstream's URL by the gate's URL.
fn configure(scene: &Scene) -> Result<String> {
    let url = scene.repo(|_| ())?.url;
    let gate = format!("http://{}:9420/tool.git", scene.address);
    fs::write(
        scene.at(".gitconfig"),
        format!("[url \"{gate}\"]\n\tinsteadOf = {url}\n[user]\n\tname = A\n\temail = a@b\n"),
    )?;
    Ok(url)
}

pub(crate) async fn submodules() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    let url = configure(&scene)?;
    scene.shell(&format!(
        "cd seed; git checkout -q -b outer; git -c protocol.file.allow=always submodule --quiet add -b main {url} inner; \
         git commit -qm outer; git push -q ../up.git outer; cd ..; \
         git clone -q --recurse-submodules -b outer {url} clone; test -e clone/inner/one; \
         cd clone/inner; git checkout -q -b inner; git commit -q --allow-empty -m inner; git push -q origin inner; \
         cd ..; git commit -qam moved; git push -q --recurse-submodules=check origin HEAD:moved"
    ))?;
    scene.refused(
        "cd clone/inner; echo $T > f; git add .; git commit -qm x; git push origin HEAD:inner",
        &["f, line 1"],
    )?;
    Ok(())
}

/// Tests the URL that git shows for a repository. git shows the upstream's URL, because it uses the gate as an HTTP
/// proxy.
pub(crate) async fn shown_url() -> Result<()> {
    let mut scene = Scene::new()?;
    let shown = "http://forge.example/team/a.git/tool.git";
    scene.open(|repo| repo.address = Some("forge.example/team/a.git/tool".to_owned())).await?;
    let proxy = format!("http://{}:9420", scene.address);
    fs::write(
        scene.at(".gitconfig"),
        format!("[http \"{shown}\"]\n\tproxy = {proxy}\n[url \"{shown}\"]\n\tinsteadOf = forge:tool\n"),
    )?;
    let remotes = scene.shell(
        "git clone -q forge:tool clone; cd clone; git checkout -q -b work; git commit -q --allow-empty -m work; \
         git push -q origin work; git fetch -q; git branch -q -u origin/work; git remote -v",
    )?;
    ensure!(remotes == format!("origin\t{shown} (fetch)\norigin\t{shown} (push)\n"), "{remotes}");
    ensure!(scene.upstream()?.contains("refs/heads/work"), "the push did not arrive");
    scene.refused(
        "cd clone; echo $T > f; git add .; git commit -qm x; git push origin work",
        &["f, line 1"],
    )?;
    // The gate acts as a proxy only for this URL and for other URLs in the same directory.
    for other in [
        "http://forge.example/team/tool.git",
        "http://forge.example:8080/team/a.git/tool.git",
        "http://other.example/team/a.git/tool.git",
        "http://forge.example.evil/team/a.git/tool.git",
    ] {
        scene.refused(&format!("git -c http.proxy={proxy} ls-remote {other}"), &["no such repository"])?;
    }
    scene.shell("git ls-remote -q $GATE")?;
    for named in [
        "forge.example/team/a.git/tool",
        "forge.example/team/a.git/tool.git",
        "forge.example/team/a.git/tool/",
    ] {
        scene.shell(&format!("git ls-remote -q {proxy}/{named}"))?;
        scene.shell(&format!("git -c http.proxy={proxy} ls-remote -q http://{named}"))?;
    }
    // The gate redirects requests for other repositories in the same directory to the upstream. The upstream's host
    // does not exist, so git's error message shows the URL.
    for beside in ["tool-docs", "tool.github.io", "tool.git-old"] {
        for (flag, begin) in [("http.x=", format!("{proxy}/")), ("http.proxy=", "http://".to_owned())] {
            let flag = if flag == "http.proxy=" { format!("{flag}{proxy}") } else { flag.to_owned() };
            let url = format!("{begin}forge.example/team/a.git/{beside}");
            let wanted = format!("https://forge.example/team/a.git/{beside}/");
            scene.refused(&format!("GIT_CURL_VERBOSE=1 git -c {flag} ls-remote {url}"), &[&wanted])?;
        }
    }
    Ok(())
}

/// A Python script that clones, pushes and fetches with libgit2.
const LIBGIT2: &str = r#"
import os, sys, pygit2
url = sys.argv[1]
class Says(pygit2.RemoteCallbacks):
    def push_update_reference(self, name, message):
        if message: print("refused:", name, message)
    def sideband_progress(self, text): print("remote:", text)
repo = pygit2.clone_repository(url, "lib")
who = pygit2.Signature("A", "a@b")
def push(name, text, branch):
    open(os.path.join("lib", name), "w").write(text)
    repo.index.add(name); repo.index.write()
    commit = repo.create_commit(None, who, who, "m", repo.index.write_tree(), [repo.head.target])
    repo.references.create("refs/heads/" + branch, commit)
    repo.remotes["origin"].push(["refs/heads/" + branch], callbacks=Says())
push("two", "two\n", "lib")
repo.remotes["origin"].fetch()
print("fetched", repo.references.get("refs/remotes/origin/lib") is not None)
try: push("key", os.environ["T"] + "\n", "bad")
except Exception as error: print("error:", error)
"#;

pub(crate) async fn libgit2() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    let url = configure(&scene)?;
    let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pygit2");
    let python = match python::with_packages(&tools, &["pygit2"]) {
        Ok(python) => python,
        Err(why) => {
            skip::aloud("supports_libgit2", &format!("cannot install pygit2: {why}"));
            return Ok(());
        }
    };
    fs::write(scene.at("client.py"), LIBGIT2)?;
    let before = scene.upstream()?;
    let output = scene.shell(&format!("{} client.py {url}", python.display()))?;
    ensure!(output.contains("fetched True"), "{output}");
    ensure!(output.contains("key, line 1 in commit") && output.contains("hook declined"), "{output}");
    let after = scene.upstream()?;
    ensure!(
        after != before && after.contains("refs/heads/lib") && !after.contains("refs/heads/bad"),
        "{after}"
    );
    Ok(())
}

/// A Python script that serves smart HTTP over TLS. The script runs `git http-backend` for clients that send the token.
const SERVER: &str = r#"
import base64, http.server, os, ssl, subprocess, sys
root, token = sys.argv[1:]
wanted = "Basic " + base64.b64encode(("x-access-token:" + token).encode()).decode()
class Serve(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *said): pass
    def serve(self):
        if self.headers.get("Authorization") != wanted:
            self.send_response(401); self.send_header("WWW-Authenticate", "Basic realm=git")
            self.send_header("Content-Length", "0"); self.end_headers(); return
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while (size := int(self.rfile.readline(), 16)):
                body += self.rfile.read(size); self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, _, query = self.path.partition("?")
        env = dict(os.environ, GIT_PROJECT_ROOT=root, GIT_HTTP_EXPORT_ALL="1", PATH_INFO=path, QUERY_STRING=query,
            REQUEST_METHOD=self.command, CONTENT_TYPE=self.headers.get("Content-Type", ""), REMOTE_USER="me",
            GIT_PROTOCOL=self.headers.get("Git-Protocol", ""), CONTENT_LENGTH=str(len(body)),
            HTTP_CONTENT_ENCODING=self.headers.get("Content-Encoding", ""))
        said = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True).stdout
        head, _, rest = said.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for field in fields.items(): self.send_header(*field)
        self.send_header("Content-Length", str(len(rest))); self.end_headers(); self.wfile.write(rest)
    do_GET = do_POST = serve
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Serve)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain("https.pem", "https.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
open("port.new", "w").write(str(server.server_port)); os.rename("port.new", "port")
server.serve_forever()
"#;

pub(crate) async fn https() -> Result<()> {
    let token = "t0ken-of-the-upstream";
    let mut scene = Scene::new()?;
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    fs::write(scene.at("https.pem"), made.cert.pem())?;
    fs::write(scene.at("https.key"), made.signing_key.serialize_pem())?;
    fs::write(scene.at("server.py"), SERVER)?;
    scene.shell("git -C up.git config http.receivepack true; git -C up.git branch same main")?;
    let mut server = Command::new("python3");
    server.arg("server.py").arg(scene.directory.path()).arg(token).current_dir(scene.directory.path());
    let _server = KilledOnDrop(server.stderr(Stdio::inherit()).spawn()?);
    until(|| scene.at("port").exists())?;
    let port: u16 = fs::read_to_string(scene.at("port"))?.parse().context("a port")?;
    connect((std::net::Ipv4Addr::LOCALHOST, port))?;
    let url = format!("https://127.0.0.1:{port}/up.git");
    let key = |token: &str| GateKey::Token { token: token.into() };
    // Tests an untrusted root certificate, then a wrong token.
    scene.open(|repo| (repo.url, repo.key) = (url.clone(), key(token))).await?;
    scene.refused("git clone -q $GATE clone", &["cannot reach the upstream of tool", "certificate"])?;
    scene.roots = made.cert.pem();
    scene.open(|repo| (repo.url, repo.key) = (url.clone(), key("another"))).await?;
    scene.refused(
        "git clone -q $GATE clone",
        &["cannot reach the upstream of tool", "does not accept the user's token"],
    )?;
    scene.open(|repo| (repo.url, repo.key) = (url.clone(), key(token))).await?;
    scene.shell("git clone -q $GATE clone")?;
    scene.write_noise("clone/big", 3_000_000)?;
    scene.shell(
        "cd clone; git add .; git commit -qm x; \
         git push -q origin HEAD:x HEAD:same; test $(git -C ../up.git rev-parse x) = $(git rev-parse HEAD)",
    )?;
    scene.refused(
        "cd clone; echo $T > f; git add .; git commit -qm y; git push origin HEAD:x",
        &["f, line 1"],
    )?;
    // The upstream echoes the token in its messages and errors.
    let sent = base64::engine::general_purpose::STANDARD.encode(format!("x-access-token:{token}"));
    for (name, end) in [("post-receive", "exit 0"), ("update", "exit 1")] {
        let hook = scene.at(&format!("up.git/hooks/{name}"));
        fs::write(&hook, format!("#!/bin/sh\necho \"debug: Basic {sent}, $0 {token}\" >&2\n{end}\n"))?;
        fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let pushed =
            "cd clone; git checkout -q origin/x; git commit -q --allow-empty -m z; git push origin HEAD:x";
        let pushed = scene.output(pushed)?;
        let stderr = String::from_utf8_lossy(&pushed.stderr);
        ensure!(pushed.status.success() == (end == "exit 0") && stderr.contains("debug: "), "{stderr}");
        ensure!(!stderr.contains(token) && !stderr.contains(&sent), "{stderr}");
    }
    let found = scene.output(&format!("grep -rF -- '{token}' gate"))?;
    ensure!(found.stdout.is_empty(), "the token is on disk");
    Ok(())
}
