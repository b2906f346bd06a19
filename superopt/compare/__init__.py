"""Two whole programs of whatever origin compared: proved equal by cuts, else refuted with arrays, else open and why."""
