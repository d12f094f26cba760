//! Tests secrets at every location in a push.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::scene::{Scene, ZERO, head};

pub(crate) async fn locations() -> Result<()> {
    let mut scene = Scene::new()?;
    scene
        .open(|repo| repo.refs.allow = Some(vec!["refs/heads/topic/**".into(), "refs/notes/*".into()]))
        .await?;
    scene.shell("git clone -q $GATE clone")?;
    let push = "git push origin HEAD:refs/heads/topic/x";
    for (name, script, words) in [
        ("a file", "echo $T > f; git add .; git commit -qm x", "f, line 1 in commit"),
        (
            "a middle commit",
            "echo $T > f; git add .; git commit -qm x; git rm -q f; git commit -qm y",
            "f, line 1",
        ),
        ("a message", "git commit -q --allow-empty -m \"m $T\"", "the commit's message"),
        ("an author", "git commit -q --allow-empty --author \"$T <a@b>\" -m x", "the commit's author"),
        (
            "a committer",
            "GIT_COMMITTER_NAME=\"$T\" git commit -q --allow-empty -m x",
            "the commit's committer",
        ),
        ("a name", "echo x > $T; git add .; git commit -qm x", "the name of a file"),
        ("a directory's name", "mkdir $T; echo x > $T/x; git add .; git commit -qm x", "the name of a file"),
        ("the new name of an old file", "git mv one $T; git commit -qm x", "the name of a file"),
        ("the name of an empty file", "touch $T; git add .; git commit -qm x", "the name of a file"),
        ("a link", "ln -s $T f; git add .; git commit -qm x", "f, line 1"),
        (
            "a submodule",
            "printf '[submodule \"x\"]\\n\\turl = https://u:%s@h/x\\n' $T > .gitmodules; git add .; git commit -qm x",
            ".gitmodules, line 2",
        ),
        ("a packed file", "echo $T | gzip > f; git add .; git commit -qm x", "f (packed)"),
        (
            "a zip",
            "python3 -c \"import zipfile,sys; z=zipfile.ZipFile('f','w',8); z.writestr('a','a'*900000); z.writestr('b',sys.argv[1]+' '*99)\" $T; git add .; git commit -qm x",
            "f (packed)",
        ),
        (
            "a zip that was streamed",
            "python3 -c \"import zipfile,sys; z=zipfile.ZipFile(sys.stdout.buffer,'w',8); z.writestr('a','a'*90000); z.writestr('b',sys.argv[1]+' '*99); z.close()\" $T | cat > f; git add .; git commit -qm x",
            "f (packed)",
        ),
        (
            "a zip that is only stored",
            "python3 -c \"import zipfile,sys; z=zipfile.ZipFile('f','w'); z.writestr('b',sys.argv[1]); z.close()\" $T; git add .; git commit -qm x",
            "f (packed)",
        ),
        (
            "a name in a zip",
            "python3 -c \"import zipfile,sys; z=zipfile.ZipFile('f','w',8); z.writestr(sys.argv[1],'x')\" $T; git add .; git commit -qm x",
            "f",
        ),
        (
            "a secret file in a zip",
            "python3 -c \"import zipfile; z=zipfile.ZipFile('f','w',8); z.writestr('a/.env','x'*99)\"; git add .; git commit -qm x",
            "a file that holds secrets by its name",
        ),
        ("an archive in gzip", "echo $T > t; tar czf f t; rm t; git add .; git commit -qm x", "f (packed)"),
        (
            "behind more findings than a report has",
            "python3 -c \"import hashlib\nfor i in range(1100): print('ghp_' + hashlib.sha256(b'%d' % i).hexdigest()[:36])\" > f; echo $SECRET >> f; git add .; git commit -qm x",
            "never passes",
        ),
        (
            "a commit with a harmless one in its place",
            "echo $T > f; git add .; git commit -qm x; git replace HEAD $(git commit-tree -p origin/main -m clean origin/main^{tree})",
            "f, line 1",
        ),
        ("wide characters", "echo $T | iconv -t UTF-16LE > f; git add .; git commit -qm x", "f, line 1"),
        (
            "wide characters with a mark",
            "echo $T | iconv -t UTF-16 > f; git add .; git commit -qm x",
            "f, line 1",
        ),
        ("wider characters", "echo $T | iconv -t UTF-32BE > f; git add .; git commit -qm x", "f, line 1"),
        (
            "a binary",
            "(head -c 3000 /dev/zero; printf '%s' $T; head -c 300 /dev/zero) > f; git add .; git commit -qm x",
            "f, line 1",
        ),
        (
            "far inside",
            "(head -c 3000000 /dev/zero | tr '\\0' 'a\\n'; echo; echo $T) > f; git add .; git commit -qm x",
            "f, line 2",
        ),
        (
            "a merge's second parent",
            "git checkout -qb side; echo $T > f; git add .; git commit -qm x; git checkout -q work; git commit -q --allow-empty -m y; git merge -q -s ours -m z side",
            "f, line 1",
        ),
        (
            "a secret of the bottle behind a token in one name",
            "echo x > $T-$SECRET; git add .; git commit -qm x",
            "never passes",
        ),
        ("a secret of the bottle", "echo $SECRET > f; git add .; git commit -qm x", "never passes"),
        ("it, encoded", "echo \"x$SECRET\" | base64 > f; git add .; git commit -qm x", "never passes"),
        ("it, marked", "echo \"$SECRET gitleaks:allow\" > f; git add .; git commit -qm x", "never passes"),
        ("a match of a user rule", "echo acme-12345678 > f; git add .; git commit -qm x", "your rule `acme`"),
        ("a token in base64", "printf 'user: %s' $T | base64 > f; git add .; git commit -qm x", "in base64"),
        (
            "a file by its name",
            "echo a=b > .env; git add -f .; git commit -qm x",
            "holds secrets by its name",
        ),
        (
            "a pointer of LFS",
            "printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:0\\nsize 1\\n' > f; git add .; git commit -qm x",
            "Git LFS",
        ),
    ] {
        let script = format!(
            "cd clone; git checkout -qB work origin/main; git branch -qD side 2> /dev/null || true; git replace -d $(git replace -l) > /dev/null 2>&1 || true; {script}; {push}"
        );
        scene.refused(&script, &["the git gate refused the push", words]).with_context(|| name.to_owned())?;
    }
    let clean =
        "cd clone; git checkout -qfB work origin/main; git clean -qfd; git commit -q --allow-empty -m x";
    for (script, words) in [
        ("git tag -a -m \"k $T\" v; git push origin v:refs/heads/topic/t", "the tag's message"),
        ("git notes add -m $T; git push origin refs/notes/commits", "line 1"),
        ("git push origin HEAD:refs/heads/main", "refs.allow"),
        ("git push origin HEAD:refs/tags/v9", "refs.tags"),
        ("git push origin HEAD:refs/replace/$(git rev-parse HEAD)", "changes what other clients see"),
        ("git push origin :refs/heads/main", "refs.delete"),
    ] {
        scene.refused(&format!("{clean}; {script}"), &["the git gate refused the push", words])?;
    }
    // The gate accepts clean pushes, but refuses non-fast-forward updates. The allowlist of a user-defined rule exempts
    // a directory of samples.
    scene.shell(&format!(
        "{clean}; mkdir fixtures; echo acme-12345678 > fixtures/f; git add .; git commit -qm x; git push -q origin HEAD:refs/heads/topic/own"
    ))?;
    scene.shell(&format!("{clean}; {push}"))?;
    scene.refused(
        "cd clone; git commit -q --amend --allow-empty -m other; git push -f origin HEAD:refs/heads/topic/x",
        &["refs.force"],
    )?;
    Ok(())
}

/// Tests files with names that indicate secrets. The gate checks every tree entry, even if the upstream already has the
/// content.
pub(crate) async fn file_names() -> Result<()> {
    let mut scene = Scene::new()?;
    // The upstream has settings under a harmless name, and files with names that indicate secrets.
    scene.shell(
        "cd seed; mkdir conf aws; echo a=b > conf/settings; echo c=d > aws/credentials; echo e=f > .netrc; \
         git add -f .; git commit -qm files; git push -q ../up.git main; git checkout -q -b side; \
         git commit -q --allow-empty -m side; git push -q ../up.git side; git checkout -q main",
    )?;
    scene.open(|_| ()).await?;
    scene.shell("git clone -q $GATE clone")?;
    let words = "a file that holds secrets by its name";
    for (name, script, file) in [
        ("a new file", "echo x > .env; git add -f .", ".env"),
        ("a new name of what upstream has", "git mv conf/settings .env", ".env"),
        ("another name of what upstream has", "cp conf/settings .env; git add -f .", ".env"),
        ("a second name in one commit", "echo x > a; cp a z; mkdir b; cp a b/.env; git add -f .", "b/.env"),
        ("a name before it in one commit", "echo x > .env; cp .env zzz; git add -f .", ".env"),
        (
            "another name in a later commit",
            "echo x > a; git add .; git commit -qm a; cp a .env; git add -f .",
            ".env",
        ),
        (
            "a name that a later commit deletes",
            "echo x > .env; git add -f .; git commit -qm a; git rm -q .env",
            ".env",
        ),
        ("an empty file", "touch .env; git add -f .", ".env"),
        ("a directory's new name", "git mv aws .aws", ".aws/credentials"),
        ("a directory's second name", "mkdir x; cp -r aws x/.AWS; git add -f .", "x/.AWS/credentials"),
        ("a link", "ln -s /etc/passwd .env; git add -f .", ".env"),
        ("a submodule", "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),.env", ".env"),
        ("upper case", "echo x > .ENV; git add -f .", ".ENV"),
        ("a dot at its end", "echo x > .env.; git add -f .", ".env."),
        ("a space at its end", "echo x > '.env '; git add -f .", ".env "),
        ("a stream of Windows", "echo x > '.env::$DATA'; git add -f .", ".env::$DATA"),
        ("a path of Windows", "echo x > 'app\\.env'; git add -f .", "app"),
        ("letters of another alphabet", "echo x > .\u{435}nv; git add -f .", "nv"),
        ("wide letters", "echo x > \u{ff0e}\u{ff45}\u{ff4e}\u{ff56}; git add -f .", "\u{ff4e}"),
        ("an invisible letter", "echo x > .e\u{200b}nv; git add -f .", "nv"),
        (
            "in a merge alone",
            "git merge -q --no-commit --no-ff origin/side || true; cp conf/settings .env; git add -f .",
            ".env",
        ),
        (
            "from the other side of a merge",
            "git checkout -qb other origin/side; cp conf/settings .env; git add -f .; git commit -qm o; \
             git checkout -q work; git merge -q -m m other; git rm -q .env",
            ".env",
        ),
    ] {
        let script = format!(
            "cd clone; git checkout -qfB work origin/main; git clean -qfdx; git branch -qD other 2> /dev/null || true; \
             {script}; git commit -q --allow-empty -m x; git push origin HEAD:refs/heads/x"
        );
        scene
            .refused(&script, &["the git gate refused the push", words, file])
            .with_context(|| name.to_owned())?;
    }
    // The gate does not report a name if the upstream already has the file under this name. The gate does not report a
    // directory either.
    scene.shell(
        "cd clone; git checkout -qfB work origin/main; git clean -qfdx; echo x > more; mkdir .env; echo x > .env/x; \
         git add -f .; git commit -qm more; git merge -q -m m origin/side; git push -q origin HEAD:refs/heads/fine",
    )?;
    Ok(())
}

/// Tests that the gate checks each path that a push adds. The gate applies the user's rules for paths, and checks the
/// type of the entry.
pub(crate) async fn paths() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.shell(
        "cd seed; mkdir fixtures; echo acme-12345678 > fixtures/f; echo deploy-12345678 > d; git add .; \
         git commit -qm files; git push -q ../up.git main",
    )?;
    scene.open(|_| ()).await?;
    scene.shell("git clone -q $GATE clone")?;
    for (name, script, words) in [
        ("a name that a rule lists", "echo x > a.acme; git add .", "a.acme"),
        ("such a name for what upstream has", "cp one a.acme; git add .", "a.acme"),
        ("a second such name", "echo x > a; cp a b.acme; git add .", "b.acme"),
        (
            "such a name for a submodule",
            "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),a.acme",
            "a.acme",
        ),
        (
            "a path with a rule",
            "mkdir deploy; echo deploy-87654321 > deploy/b; git add .",
            "deploy/b, line 1",
        ),
        (
            "a twin under a path with a rule",
            "mkdir deploy; echo deploy-87654321 > a; cp a deploy/b; git add .",
            "deploy/b, line 1",
        ),
        (
            "a twin in a later commit",
            "mkdir deploy; echo deploy-87654321 > a; git add .; git commit -qm a; cp a deploy/b; git add .",
            "deploy/b, line 1",
        ),
        ("what upstream has elsewhere", "mkdir deploy; git mv d deploy/b", "deploy/b, line 1"),
        (
            "a twin of a sample",
            "mkdir -p fixtures; echo acme-87654321 > fixtures/a; cp fixtures/a b; git add .",
            "b, line 1",
        ),
        ("a sample of upstream elsewhere", "git mv fixtures/f b", "b, line 1"),
        (
            "a directory behind a submodule with its id",
            "mkdir .aws; echo x > .aws/credentials; git add .; tree=$(git write-tree --prefix=.aws/); git rm -qf --cached -r .aws; \
             git update-index --add --cacheinfo 160000,$tree,.aws; git commit -qm link; git rm -q --cached .aws; git add .aws",
            ".aws/credentials",
        ),
        (
            "a token in the id of a submodule",
            "git update-index --add --cacheinfo 160000,$(printf %s $T | od -An -tx1 | tr -d ' \\n'),s",
            "the commit ids of submodules",
        ),
        (
            "a secret in the ids of two submodules",
            "id=$(printf %-40s $SECRET | od -An -v -tx1 | tr -d ' \\n'); git update-index --add \
             --cacheinfo 160000,$(echo $id | cut -c1-40),a --cacheinfo 160000,$(echo $id | cut -c41-80),b",
            "never passes",
        ),
        (
            "a secret over several directories",
            "mkdir -p correct-horse/battery; echo x > correct-horse/battery/staple; git add .",
            "the path of a file",
        ),
        (
            "more submodules than are scanned",
            "tree=$(python3 -c \"for i in range(262145): print(f'160000 commit {i + 1:040x}\\t{i:x}')\" | git mktree --missing); \
             git reset -q --soft $(git commit-tree -p HEAD -m x $tree)",
            "different entries of submodules",
        ),
        (
            "a path that is too long",
            "id=$(git rev-parse HEAD:one); git update-index --add --cacheinfo 100644,$id,$(python3 -c \"print('d' * 200 + ('/' + 'd' * 200) * 20)\")",
            "a path of more than 4096 bytes",
        ),
        (
            "a mode that git does not write",
            "id=$(python3 -c \"import sys; sys.stdout.buffer.write(b'100600 f' + bytes(1) + bytes.fromhex(sys.argv[1]))\" \
             $(git rev-parse HEAD:one) | git hash-object -w --literally --stdin -t tree); \
             git reset -q --hard $(git commit-tree -p HEAD -m x $id)",
            "the mode \"100600\", which git does not write",
        ),
        (
            "a return in the path of a submodule",
            "printf '[submodule \"x\"]\\n\\tpath = \"x\\r\"\\n\\turl = https://h/x\\n' > .gitmodules; git add .",
            "carriage return",
        ),
    ] {
        let script = format!(
            "cd clone; git checkout -qfB work origin/main; git clean -qfdx; {script}; \
             git commit -q --allow-empty -m x; git push origin HEAD:refs/heads/x"
        );
        scene.refused(&script, &["the git gate refused the push", words]).with_context(|| name.to_owned())?;
    }
    // The gate accepts paths that the upstream already has, samples, and submodules with ordinary ids.
    scene.shell(
        "cd clone; git checkout -qfB work origin/main; git clean -qfdx; cp fixtures/f fixtures/g; echo x >> one; \
         git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub; git add .; git commit -qm fine; \
         git checkout -q -b side HEAD^; echo y > y; git add .; git commit -qm y; git merge -q -m m work; \
         git push -q origin HEAD:refs/heads/fine",
    )?;
    Ok(())
}

/// Tests secrets in compressed and encoded parts of commits, and in trees that no commit contains.
pub(crate) async fn packed() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|repo| repo.refs.tags = true).await?;
    scene.shell("git clone -q $GATE clone")?;
    fs::write(scene.at("packed.py"), PACKED)?;
    for (name, script, words) in [
        (
            "gzip in a message",
            "python3 ../packed.py $T > ../m; git -c i18n.commitEncoding=ISO-8859-1 commit -q --allow-empty --cleanup=verbatim -F ../m",
            "the commit's text (packed)",
        ),
        (
            "gzip in the name of a file",
            "python3 ../packed.py $T > ../m; git reset -q --hard $(git commit-tree -p HEAD -m x $( \
             (printf '100644 blob %s\\t' $(git rev-parse HEAD:one); cat ../m; printf '\\0') | git mktree -z))",
            "the names of files (packed)",
        ),
        (
            "zlib in a file",
            "python3 -c \"import sys, zlib; sys.stdout.buffer.write(zlib.compress(sys.argv[1].encode()))\" $T > f; git add f",
            "f (packed)",
        ),
        (
            "another encoding",
            "git -c i18n.commitEncoding=IBM037 commit -q --allow-empty -m x",
            "the encoding \"IBM037\", which the git gate does not read",
        ),
        (
            "an old pointer of LFS",
            "printf 'version https://hawser.github.com/spec/v1\\noid sha256:0\\nsize 1\\n' > f; git add f",
            "Git LFS",
        ),
        (
            "a pointer of LFS behind lines",
            "printf '\\n\\nversion https://git-lfs.github.com/spec/v1\\noid sha256:0\\nsize 1\\n' > f; git add f",
            "Git LFS",
        ),
    ] {
        let script = format!(
            "cd clone; git checkout -qfB work origin/main; git clean -qfdx; {script}; \
             git commit -q --allow-empty -m x; git push origin HEAD:refs/heads/x"
        );
        scene.refused(&script, &["the git gate refused the push", words]).with_context(|| name.to_owned())?;
    }
    // A tag may name a tree without a commit. The paths of this tree are checked too.
    let tag = "cd clone; git checkout -qfB work origin/main; echo x > .env; git add -f .env; \
               git tag -f t $(git write-tree); git push origin t";
    scene.refused(tag, &["the git gate refused the push", ".env", "holds secrets by its name"])?;
    let rule = "cd clone; git rm -qf .env; echo x > a.acme; git add .; git tag -f -am m t $(git write-tree); git push origin t";
    scene.refused(rule, &["the git gate refused the push", "a.acme"])?;
    scene.shell("cd clone; git rm -qf a.acme; git tag -f -am m t $(git write-tree); git push -q origin t")?;
    Ok(())
}

/// A Python script that prints gzip data without zero bytes, slashes and line breaks, so that the data can be a commit
/// message or a file name.
const PACKED: &str = r#"
import sys, zlib
for pad in range(64):
    # Characters beyond 143 have nine bits, and move what follows by one bit.
    pad = bytes([160]) * (pad % 8) + b" " * (pad // 8)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = packer.compress(pad + b" " + sys.argv[1].encode() + b" the end of it") + packer.flush()[:-3]
    data = bytes.fromhex("1f8b0801010101010203") + data
    if not set(data) & {0, 10, 13, 47}:
        sys.stdout.buffer.write(data)
        break
"#;

/// Tests objects that ordinary git commands do not create.
pub(crate) async fn encodings() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|repo| repo.refs.tags = true).await?;
    scene.shell("git clone -q $GATE clone")?;
    // git refuses UTF-16 in a commit but accepts it in a tag.
    let id = "| git hash-object -w --literally --stdin -t";
    let author = "A <a@b> 1 +0000\\n";
    scene.shell(&format!(
        "cd clone; (printf 'tree %s\\nparent %s\\nauthor {author}committer {author}\\n' $(git rev-parse HEAD^{{tree}} HEAD); \
         echo $T | iconv -t UTF-16LE) {id} commit > ../commit; \
         (printf 'object %s\\ntype commit\\ntag v\\ntagger {author}\\n' $(git rev-parse HEAD); \
         echo $T | iconv -t UTF-16LE) {id} tag > ../tag"
    ))?;
    scene.refused("cd clone; git push origin $(cat ../commit):refs/heads/x", &["nulInCommit"])?;
    scene.refused("cd clone; git push origin $(cat ../tag):refs/tags/v", &["the tag's message"])?;
    // `refused` cannot be used here, because the client prints the name of the ref.
    let before = scene.upstream()?;
    for name in ["$T", "$SECRET", "a/$T/b"] {
        let output = scene.output(&format!("cd clone; git push origin HEAD:refs/heads/{name}"))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(stderr.contains("the name of a ref looks like it contains a secret"), "{stderr}");
        ensure!(!output.status.success() && scene.upstream()? == before, "{name}");
    }
    // The gate does not report a name if the upstream already has the name, even if other files change.
    scene.shell(
        "cd seed; echo x > $T; git add .; git commit -qm named; git push -q ../up.git main; \
         cd ../clone; git pull -q; git checkout -qb named; echo y > $T; echo z > z; git add .; git commit -qm y; \
         git push -q origin named",
    )?;
    Ok(())
}

/// Tests pushes that git does not create: a pack with an unreachable blob, a pack with a commit of a deleted branch,
/// and a signed push although the gate did not offer signed pushes.
pub(crate) async fn unreachable() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|repo| repo.refs.delete = true).await?;
    let made = scene.shell(
        "git clone -q $GATE clone; cd clone; git commit -q --allow-empty -m gone; git rev-parse HEAD; \
         git reset -q --hard origin/main; git commit -q --allow-empty -m x; git rev-parse HEAD",
    )?;
    let ids: Vec<&str> = made.lines().collect();
    let [deleted, new] = ids[..] else { anyhow::bail!("{made}") };
    let create = format!("{ZERO} {new} refs/heads/x");
    let pack = |others: &str| -> Result<Vec<u8>> {
        scene.shell(&format!(
            "cd clone; (git rev-parse HEAD; {others}) | git pack-objects -q --stdout > ../pack"
        ))?;
        Ok(fs::read(scene.at("pack"))?)
    };
    let hidden = "objects that none of its refs reaches";
    let blob = pack("echo hidden | git hash-object -w --stdin")?;
    scene.refused_raw(&[head(std::slice::from_ref(&create)), blob].concat(), hidden)?;
    let two = pack(&format!("echo {deleted}"))?;
    let lines = [create.clone(), format!("{deleted} {ZERO} refs/heads/gone")];
    scene.refused_raw(&[head(&lines), two].concat(), hidden)?;
    let signed = [
        "push-cert\0report-status side-band-64k",
        "certificate version 0.1\n",
        "\n",
        &create,
        "push-cert-end\n",
    ];
    let mut body: Vec<u8> =
        signed.iter().flat_map(|l| format!("{:04x}{l}", l.len() + 4).into_bytes()).collect();
    body.extend(b"0000");
    body.extend(pack("true")?);
    scene.refused_raw(&body, "--no-signed")?;
    let loose = scene.shell("find gate/tool.git/objects -type f ! -path '*/pack/*'")?;
    ensure!(loose.is_empty(), "{loose}");
    Ok(())
}

/// Tests a loose object in the mirror that is not from the upstream. receive-pack writes such an object for a
/// signed push.
pub(crate) async fn loose() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    scene.shell(
        "git clone -q $GATE clone; cd clone; echo $T > f; git add .; git commit -qm x; \
         git -C ../gate/tool.git hash-object -w --stdin < f",
    )?;
    scene.refused("cd clone; git push origin HEAD:x", &["f, line 1"])?;
    // The pack does not contain the blob, but the mirror does.
    let new = scene.shell("git -C clone rev-parse HEAD")?;
    scene.shell("cd clone; git rev-parse HEAD HEAD^{tree} | git pack-objects -q --stdout > ../pack")?;
    let body = [head(&[format!("{ZERO} {} refs/heads/x", new.trim())]), fs::read(scene.at("pack"))?].concat();
    scene.refused_raw(&body, "f, line 1")
}

/// Tests a file that exceeds both git's buffer limit and the gate's memory limit.
pub(crate) async fn large() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.open(|_| ()).await?;
    scene.shell(
        "git clone -q $GATE clone; cd clone; yes 'nothing that anybody would look for' | head -c 105000000 > f; \
         echo >> f; echo $T >> f; git add .; git -c core.compression=1 commit -qm x",
    )?;
    scene.refused("cd clone; git push origin HEAD:x", &["f, line 2916668 in commit"])?;
    let status = fs::read_to_string(format!("/proc/{}/status", scene.gate_pid()?))?;
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("a peak")?;
    let most: u64 = most.trim().trim_end_matches(" kB").parse()?;
    ensure!(most <= 64 << 10, "the gate had {most} kB");
    Ok(())
}
