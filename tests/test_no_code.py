"""Nothing in the package unpickles, evaluates text, or gives words to a shell: read from its syntax trees."""

import ast
from pathlib import Path

import pytest

import ube

HOME = Path(ube.__file__).parent
MODULES = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "code", "codeop", "runpy",
    "pty", "xmlrpc",
    "telnetlib", "http.server", "socketserver", "ctypes",
}  # fmt: skip
"""Never imported, nor anything in them."""
BUILTINS = {"eval", "exec", "compile", "breakpoint"}
CALLS = {
    "os.system", "os.popen", "os.execv", "os.execve", "os.execvp", "os.spawnv", "os.posix_spawn", "subprocess.getoutput",
    "subprocess.getstatusoutput", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "pandas.read_pickle",
    "pd.read_pickle",
    "torch.load", "jsonpickle.decode", "tempfile.mktemp", "np.fromregex", "shutil.unpack_archive",
}  # fmt: skip
EXTRACTS = {"extractall", "extract"}
"""Methods of archives, which are read in memory here."""
SERVES = {"bind", "listen", "HTTPServer", "ThreadingHTTPServer", "create_server", "start_server"}
"""The package opens no port: Ray's are the user's own cluster's."""
IMPORTERS = {"places.py", "envs/gymnasium_adapter.py", "envs/navix_adapter.py", "doctor.py"}
"""Files that may import a module by its name: the user's own, given by word, and the package's own checks."""
ASKERS = {"envs/gymnasium_adapter.py", "deep/networks.py"}
"""Those that may ask for the user's own."""

ALLOWED = {"runs/jax_setup.py": "ctypes"}
"""Sets the allocator by two constants, and is given nothing that was read."""


def offences(source: str, file: str = "x.py") -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"import {name}" for name in names if _banned_module(name) and name != ALLOWED.get(file)]
        if isinstance(node, ast.Call):
            found += _calls(node, file)
    return found


def _banned_module(name: str) -> bool:
    return name in MODULES or name.split(".")[0] in MODULES


def _calls(node: ast.Call, file: str) -> list[str]:
    name = ast.unparse(node.func)
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    found = [name] if name in BUILTINS | CALLS or name.rsplit(".", 1)[-1] in EXTRACTS | SERVES else []
    shell = keywords.get("shell")
    if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
        found.append("shell=")
    pickles = keywords.get("allow_pickle")
    if name in ("np.load", "numpy.load") and pickles is None:
        found.append("np.load without allow_pickle=False")
    if pickles is not None and not (isinstance(pickles, ast.Constant) and pickles.value is False):
        found.append("allow_pickle=")
    if (name.endswith("import_module") or name == "__import__") and file not in IMPORTERS:
        found.append(name)
    if name.rsplit(".", 1)[-1] == "imported" and file not in ASKERS:
        found.append(name)
    return found


def test_nothing_that_is_read_can_become_code() -> None:
    files = {file.relative_to(HOME).as_posix(): file.read_text(encoding="utf-8") for file in HOME.rglob("*.py")}
    assert len(files) > 100
    found = {name: offences(source, name) for name, source in files.items()}
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "import ctypes", "import os, marshal", "from dill import loads", "import joblib.numpy_pickle",
        "from shelve import open",
        "eval('1')", "exec(text)", "compile(a, b, 'exec')", "__import__(name)", "subprocess.run(words, shell=True)",
        "subprocess.Popen(words, shell=flag)", "os.system(text)", "os.popen(text)", "yaml.load(text)", "np.load(path)",
        "np.load(path, allow_pickle=True)", "np.lib.format.read_array(file, allow_pickle=flag)",
        "archive.extractall(path)",
        "importlib.import_module(name)", "torch.load(path)", "sock.bind(('', 80))", "socket.create_server(place)",
    ],
)  # fmt: skip
def test_the_check_sees_what_it_should(source: str) -> None:
    assert offences(source)


def test_the_check_leaves_the_rest_alone() -> None:
    good = "re.compile(x)\nsubprocess.run(words, shell=False)\nnp.load(path, allow_pickle=False)\nlowered.compile()"
    assert offences(good) == []
