//! Tests malformed packs, bodies and requests.

use std::fs;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::scene::{RECEIVE, Scene, ZERO, connect, head};

/// Creates a scene, and the body of a push with one commit.
async fn with_body() -> Result<(Scene, Vec<u8>)> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    scene.shell("git clone -q $GATE clone")?;
    scene.write_noise("clone/f", 30_000)?;
    let made = scene.shell(
        "cd clone; git add .; git commit -qm x; \
         git rev-parse HEAD; git rev-list --objects --no-object-names origin/main..HEAD \
         | git pack-objects -q --stdout > ../pack",
    )?;
    let body =
        [head(&[format!("{ZERO} {} refs/heads/x", made.trim())]), fs::read(scene.at("pack"))?].concat();
    Ok((scene, body))
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes)?;
    Ok(packed.finish()?)
}

pub(crate) async fn bodies() -> Result<()> {
    let (scene, body) = with_body().await?;
    let before = scene.upstream()?;
    let mut flipped = body.clone();
    flipped[body.len() - 400] ^= 1;
    let packed = gzip(&body)?;
    let bomb = gzip(&vec![0; 260 << 20])?;
    let gz = "Content-Encoding: gzip\r\n";
    for (name, headers, body, word) in [
        ("a truncated pack", "", &body[..body.len() / 2], "its pack cannot be unpacked: it is incomplete"),
        ("no pack", "", &body[..200], "unpack "),
        ("a damaged pack", "", &flipped, "its pack cannot be unpacked: it is damaged"),
        ("half a line", "", &body[..20], "HTTP/1.1 200"),
        ("nothing", "", &[][..], "HTTP/1.1 200"),
        ("an end", "", b"0000", "HTTP/1.1 200"),
        ("noise", "", &[0xff; 5000], "it is not a git push"),
        ("a gzip bomb", gz, &bomb, "it is not a git push"),
        (
            "a gzip bomb behind a head",
            gz,
            &gzip(
                &[&head(&[format!("{ZERO} {0} refs/heads/x", "1".repeat(40))])[..], &vec![0; 260 << 20]]
                    .concat(),
            )?,
            "its pack cannot be unpacked: it is not a pack of git",
        ),
        ("half a gzip body", gz, &packed[..packed.len() / 2], "HTTP/1.1 200"),
        ("a damaged gzip body", gz, &[&packed[..900], &[0xff; 3000]].concat(), "HTTP/1.1 200"),
        ("a plain body", gz, &body, "its gzip encoding is damaged"),
        ("an unsupported encoding", "Content-Encoding: br\r\n", &body, "HTTP/1.1 415"),
    ] {
        let answer = scene.post(RECEIVE, headers, body)?;
        ensure!(answer.contains(word), "{name}: no {word:?} in {answer}");
        ensure!(!answer.contains("ok refs/heads/x"), "{name}: {answer}");
        ensure!(scene.upstream()? == before, "{name}: the upstream has changed");
    }
    // The gate accepts a valid push.
    let answer = scene.post(RECEIVE, gz, &packed)?;
    ensure!(answer.contains("ok refs/heads/x"), "{answer}");
    ensure!(scene.upstream()?.contains("refs/heads/x"));
    Ok(())
}

/// Tests a delta of one kilobyte with a result of 8 GiB, and a chain of deltas in which each result is sixteen times
/// larger than its base.
pub(crate) async fn delta() -> Result<()> {
    let (scene, _) = with_body().await?;
    let new = scene.shell("git -C clone rev-parse HEAD")?;
    fs::write(scene.at("bomb.py"), BOMB)?;
    for kind in ["one", "chain"] {
        scene.shell(&format!("python3 bomb.py {kind} > bomb"))?;
        let bomb = fs::read(scene.at("bomb"))?;
        ensure!(bomb.len() < 64 << 10, "{} bytes are no bomb", bomb.len());
        let body = [head(&[format!("{ZERO} {} refs/heads/x", new.trim())]), bomb].concat();
        let began = Instant::now();
        scene.refused_raw(&body, "its pack cannot be unpacked: the result of a delta has")?;
        ensure!(began.elapsed() < Duration::from_secs(60), "{kind}: {:?}", began.elapsed());
    }
    scene.shell("cd clone; git push -q origin HEAD:x")?;
    Ok(())
}

/// Tests three concurrent pushes with deltas. The results of the deltas have hundreds of megabytes at first, and then
/// the maximum size that the gate accepts. The processes of the gate must stay within the memory limit.
pub(crate) async fn memory() -> Result<()> {
    let (scene, _) = with_body().await?;
    let new = scene.shell("git -C clone rev-parse HEAD")?;
    fs::write(scene.at("bomb.py"), BOMB)?;
    let mirror = scene.at("gate/tool.git").canonicalize()?;
    for (kind, most, word) in
        [("large", 64, "the result of a delta has 469762021 bytes"), ("accepted", 512, "bad object")]
    {
        scene.shell(&format!("python3 bomb.py {kind} > bomb"))?;
        let bomb = fs::read(scene.at("bomb"))?;
        ensure!(bomb.len() < 64 << 10, "{} bytes are no bomb", bomb.len());
        let body = [head(&[format!("{ZERO} {} refs/heads/x", new.trim())]), bomb].concat();
        let answers: Vec<Result<String>> = std::thread::scope(|scope| {
            let pushes: Vec<_> = (0..3).map(|_| scope.spawn(|| scene.post(RECEIVE, "", &body))).collect();
            let mut peak = 0;
            while !pushes.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                peak = peak.max(resident(&mirror));
                std::thread::sleep(Duration::from_millis(5));
            }
            let mut answers: Vec<_> = pushes.into_iter().map(|push| push.join().expect("no panic")).collect();
            if peak >> 10 > most {
                answers.push(Err(anyhow::anyhow!("the processes of the gate had {} MiB", peak >> 10)));
            }
            answers
        });
        for answer in answers {
            let answer = answer.with_context(|| kind.to_owned())?;
            ensure!(answer.contains(word), "{kind}: no {word:?} in {answer}");
        }
    }
    scene.shell("cd clone; git push -q origin HEAD:x")?;
    Ok(())
}

/// Returns the memory of all git processes that run in a directory, in kilobytes.
fn resident(directory: &std::path::Path) -> u64 {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|process| process.path());
    let own = processes.filter(|process| {
        fs::read(process.join("cmdline")).is_ok_and(|line| line.windows(3).any(|word| word == b"git"))
            && fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(directory))
    });
    let size = |process: std::path::PathBuf| {
        let status = fs::read_to_string(process.join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    own.filter_map(size).sum()
}

const BOMB: &str = r#"
import hashlib, struct, sys, zlib
def number(n):
    out = bytearray()
    while True:
        out.append((n & 127) | (128 if n > 127 else 0)); n >>= 7
        if not n: return bytes(out)
def head(kind, size):
    out = bytearray([(kind << 4) | (size & 15)]); size >>= 4
    while size:
        out[-1] |= 128; out.append(size & 127); size >>= 7
    return bytes(out)
def back(n):
    out = [n & 127]; n >>= 7
    while n:
        n -= 1; out.insert(0, 128 | (n & 127)); n >>= 7
    return bytes(out)
def copy(size): # from the beginning
    return bytes([0xf0, size & 255, size >> 8 & 255, size >> 16])
base = bytes((1 << 24) - 1)
links = {"one": [512], "chain": [16] * 4, "large": [28, 1], "accepted": [7, 1, 1]}[sys.argv[1]]
pack = b"PACK" + struct.pack(">II", 2, 1 + len(links))
before = len(pack)
pack += head(3, len(base)) + zlib.compress(base, 9)
size = len(base)
for n, times in enumerate(links):
    piece = min(size, (1 << 24) - 1)
    copies = times * (size // piece)
    # The last byte, which is not copied, makes each object another one.
    text = number(size) + number(piece * copies + 1) + copy(piece) * min(copies, 4096) + bytes([1, n + 1])
    at = len(pack)
    pack += head(6, len(text)) + back(at - before) + zlib.compress(text, 9)
    before, size = at, piece * copies + 1
sys.stdout.buffer.write(pack + hashlib.sha1(pack).digest())
"#;

pub(crate) async fn shallow() -> Result<()> {
    let (scene, body) = with_body().await?;
    let line = |number: usize| format!("0034shallow {number:040x}");
    let shallow: String = (0..50_000).map(line).collect();
    let tip = scene.shell("git -C up.git rev-parse main")?;
    let tip = tip.trim();
    let began = Instant::now();
    let two = ["0011command=fetch0001", &format!("0032want {tip}\n"), &shallow, "0009done\n0000"].concat();
    let one = [&format!("0032want {tip}\n"), &shallow, "00000009done\n"].concat();
    for (version, body) in [("Git-Protocol: version=2\r\n", two), ("", one)] {
        let answer = scene.post("/tool.git/git-upload-pack", version, body.as_bytes())?;
        ensure!(answer.starts_with("HTTP/1.1 200") && answer.contains("PACK"), "{answer:.300}");
    }
    scene.refused_raw(&[shallow.as_bytes(), &body].concat(), "the clone has too many shallow commits")?;
    ensure!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    Ok(())
}

pub(crate) async fn endpoints() -> Result<()> {
    let (scene, _) = with_body().await?;
    for (head, status) in [
        ("GET /tool.git/objects/info/packs HTTP/1.1", "404"),
        ("GET /tool.git/config HTTP/1.1", "404"),
        ("GET /../tool.git/HEAD HTTP/1.1", "404"),
        ("GET /tool.git/info/refs HTTP/1.1", "403"),
        ("GET /tool.git/info/refs?service=git-upload-archive HTTP/1.1", "403"),
        ("GET /other.git/info/refs?service=git-upload-pack HTTP/1.1", "404"),
        ("GET /tool.git/../tool.git/info/refs?service=git-upload-pack HTTP/1.1", "404"),
        ("GET /%74ool.git/info/refs?service=git-upload-pack HTTP/1.1", "404"),
        ("GET /tool.git/hooks/pre-receive HTTP/1.1", "404"),
        ("DELETE /tool.git/git-receive-pack HTTP/1.1", "404"),
        // The push endpoint has only one spelling, even if other servers accept more spellings.
        ("POST /tool.git/git-receive-pack/ HTTP/1.1", "404"),
        ("POST /tool.git//git-receive-pack HTTP/1.1", "404"),
        ("POST /tool.git/Git-Receive-Pack HTTP/1.1", "404"),
        ("POST /tool.git/git%2Dreceive-pack HTTP/1.1", "404"),
        ("POST /tool.git/git-receive-pack;x HTTP/1.1", "404"),
        ("POST /tool/git-receive-pack HTTP/1.1", "404"),
        ("POST /TOOL.GIT/git-receive-pack HTTP/1.1", "404"),
        ("GET /tool.git/info/refs/?service=git-receive-pack HTTP/1.1", "404"),
        ("GET /tool.git/info/refs?Service=git-receive-pack HTTP/1.1", "403"),
        ("GET /tool.git/info/refs?service=git-upload-pack&service=git-receive-pack HTTP/1.1", "403"),
        ("GET /tool.git/info/refs?service=git-receive-pack&service=x HTTP/1.1", "403"),
        ("GET noslash HTTP/1.1", "404"),
        ("nonsense", "400"),
        ("POST /tool.git/info/lfs/objects/batch HTTP/1.1", "501"),
    ] {
        let mut socket = connect((scene.address, 9420))?;
        write!(socket, "{head}\r\nHost: git-gate\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        ensure!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{head}: {answer}");
    }
    // Sends a request head that never ends.
    let mut socket = connect((scene.address, 9420))?;
    let _ = socket.write_all(&[b"GET / HTTP/1.1\r\nA: ".to_vec(), vec![b'a'; 1 << 20]].concat());
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    ensure!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    scene.shell("git ls-remote -q $GATE")?;
    Ok(())
}

/// Tests spellings of the push endpoint that some servers accept. The gate must scan the push or refuse the request.
pub(crate) async fn spellings() -> Result<()> {
    let (scene, _) = with_body().await?;
    let made = scene.shell(
        "cd clone; git checkout -q origin/main; echo $SECRET > g; git add .; git commit -qm x; git rev-parse HEAD; \
         git rev-list --objects --no-object-names origin/main..HEAD | git pack-objects -q --stdout > ../secret",
    )?;
    let secret = fs::read(scene.at("secret"))?;
    let body = [head(&[format!("{ZERO} {} refs/heads/x", made.trim())]), secret].concat();
    let before = scene.upstream()?;
    scene.shell("git ls-remote -q $GATE")?;
    let read = scene.post(RECEIVE, "", &body)?;
    ensure!(read.starts_with("HTTP/1.1 200") && read.contains("never passes"), "{read}");
    for path in [
        "/tool.git/git-receive-pack/",
        "/tool.git/git-receive-pack//",
        "/tool.git//git-receive-pack",
        "//tool.git/git-receive-pack",
        "/tool.git/./git-receive-pack",
        "/tool.git/x/../git-receive-pack",
        "/tool.git/git-receive-pack/.",
        "/tool.git/git-receive-pack/..;/",
        "/tool.git/git-receive-pack;x=1",
        "/tool.git/git-receive-pack?",
        "/tool.git/git-receive-pack?service=git-upload-pack",
        "/tool.git/git-receive-pack#x",
        "/tool.git/git-receive-pack%2f",
        "/tool.git/git-receive-pack%20",
        "/tool.git/%67it-receive-pack",
        "/tool.git/git%2Dreceive%2Dpack",
        "/tool.git/GIT-RECEIVE-PACK",
        "/TOOL.git/git-receive-pack",
        "/tool.GIT/git-receive-pack",
        "/tool/git-receive-pack",
        "/tool/git-receive-pack/",
        "/tool.git.git/git-receive-pack",
        "/tool.git/info/refs/git-receive-pack",
        "http://git-gate:9420/tool.git/git-receive-pack",
        "http://git-gate:9420/tool.git/git-receive-pack/",
    ] {
        for headers in ["", "Content-Type: application/x-git-receive-pack-request\r\n"] {
            let answer = scene.post(path, headers, &body)?;
            let refused = ["HTTP/1.1 404", "HTTP/1.1 400"].iter().any(|status| answer.starts_with(status));
            ensure!(refused || answer.contains("never passes"), "{path}: {answer}");
            ensure!(!answer.contains("ok refs/heads/x"), "{path}: {answer}");
        }
    }
    // Requests for the ref list with other spellings get the gate's list of refs or an error.
    for query in [
        "info/refs/?service=git-receive-pack",
        "info/refs//?service=git-receive-pack",
        "info/refs%2f?service=git-receive-pack",
        "info//refs?service=git-receive-pack",
        "info/refs;?service=git-receive-pack",
        "info/refs?Service=git-receive-pack",
        "info/refs?service=git-receive-pack/",
        "info/refs?service=git-receive-pack%20",
        "info/refs?service=git%2Dreceive%2Dpack",
        "info/refs?x=1&service=git-receive-pack",
        "info/refs?service=git-upload-pack&service=git-receive-pack",
    ] {
        let mut socket = connect((scene.address, 9420))?;
        let end = "Host: git-gate\r\nConnection: close\r\n\r\n";
        write!(socket, "GET /tool.git/{query} HTTP/1.1\r\n{end}")?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        let none = ["404", "403"].iter().any(|status| answer.starts_with(&format!("HTTP/1.1 {status}")));
        ensure!(none || answer.contains("# service=git-"), "{query}: {answer}");
    }
    // Requests to other endpoints must not start a receive-pack.
    ensure!(scene.upstream()? == before, "the upstream has changed");
    let kept = scene.shell("ls gate/tool.git/objects")?;
    ensure!(!kept.contains("incoming"), "{kept}");
    Ok(())
}

/// Tests URLs that could make git or ssh run a command.
pub(crate) async fn injection() -> Result<()> {
    let mut scene = Scene::new()?;
    let mark = scene.at("mark").display().to_string();
    let up = scene.at("up.git").display().to_string();
    for url in [
        format!("ext::sh -c touch% {mark}"),
        format!("ssh://-oProxyCommand=touch${{IFS}}{mark}/x.git"),
        format!("ssh://git@-oProxyCommand=touch${{IFS}}{mark}/x.git"),
        format!("-oProxyCommand=touch {mark}:x.git"),
        format!("--upload-pack=touch {mark}"),
        format!("file://{up}"),
        up.clone(),
        format!("https://127.0.0.1:1/x.git\n[core]\n\tsshCommand = touch {mark}"),
        format!("ssh://git@127.0.0.1:1/`touch {mark}`.git"),
        format!("ssh://git@127.0.0.1:1/x.git;touch {mark}"),
    ] {
        scene.open(|repo| repo.url.clone_from(&url)).await?;
        scene.refused("git clone -q $GATE clone", &["cannot reach the upstream of tool"])?;
        ensure!(!scene.at("mark").exists(), "{url} ran a command");
        ensure!(!fs::read_to_string(scene.at("gate/tool.git/config"))?.contains("touch"), "{url}");
    }
    Ok(())
}
