"""`idiolect watch`: curves of a run."""

QUICK = ("--clients", "5", "--rounds", "3", "--model", "mlp(hidden=[8])", "--engine", "loop", "--quiet")


def test_watching_a_finished_run_shows_it_once(call):
    assert call("run", "--out", "a", *QUICK)[0] == 0
    code, out, _ = call("watch", "a")
    assert code == 0
    assert out.startswith("fedavg  round 3/3")
    assert "validation accuracy (%): " in out


def test_what_cannot_be_watched_gets_a_sentence(call):
    code, _, err = call("watch", "nowhere")
    assert (code, err) == (
        2,
        "error: nowhere holds no run and no comparison; start one with: idiolect run --out nowhere\n",
    )


def test_the_options_of_the_page_belong_together(call):
    assert call("watch", "a", "--web", "--once")[::2] == (
        2,
        "error: --once and --web contradict each other; choose one of them\n",
    )
    assert call("watch", "a", "--port", "8000")[::2] == (2, "error: --port is for --web; give both or none\n")
    code, _, err = call("watch", "nowhere", "--web")
    assert (code, err.startswith("error: nowhere holds no run and no comparison")) == (2, True)
