"""Random definitions of pipelines, run live, as backfills, and by plain Python.

    python -m tests.spark.random_definitions --seed 7 --count 200

Each seed is one definition with its messages. Three results are compared, row for row: that of
the live pipeline, cut at random and stopped now and then; that of backfills up to a random instant
and to the end; that of `oracle`, which knows what the pages say and nothing of the compiler. What
is late and what cannot be computed with are compared too.

    expressions   what a definition may compute: as Spark SQL, and as Python
    specs         a definition and its messages
    generator     makes them up
    oracle        says what they give
    runner        lets Spark say it, and compares
    telling       does so for many, and prints what became of them
"""
